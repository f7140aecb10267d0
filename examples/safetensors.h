/* safetensors.h -- reads JSON, and the tensors of a folder of Hugging Face, which stay where the files are mapped.
 *
 * For moe_lm.c.  Enough for files that programs wrote: names have no escapes, and what is no JSON is not noticed.  The
 * offsets of tensors are checked. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "example.h"

/* ---- JSON where it lies: a value is the address of its first character, NULL if there is none -------------------- */

static inline char *json_text(const unsigned char *from, size_t bytes)        /* a copy with an end, which stays */
{
    char *text = (char *)calloc(bytes + 1, 1);
    example_must(text != NULL, "calloc", "out of memory");
    return (char *)memcpy(text, from, bytes);
}
static inline const char *json_skip(const char *p) { return p + strspn(p, " \t\r\n,:"); }
static inline const char *json_end(const char *p)             /* behind a value */
{
    int depth = 0;
    do {
        if (*p == '"') {
            for (p++; *p && *p != '"'; p++) if (*p == '\\' && p[1]) p++;
            if (*p) p++;
        } else if (*p == '{' || *p == '[') depth++, p++;
        else if (*p == '}' || *p == ']') depth--, p++;
        else p += strcspn(p, " \t\r\n,:{}[]\"");
        if (depth > 0) p = json_skip(p);
    } while (depth > 0 && *p);
    return p;
}
static inline const char *json_some(const char *p)
{
    p = json_skip(p);
    return *p && *p != ']' && *p != '}' ? p : NULL;
}
/* The first element of an array, or key of an object; what follows an element, or a key's value. */
static inline const char *json_first(const char *v) { return v && (*v == '{' || *v == '[') ? json_some(v + 1) : NULL; }
static inline const char *json_next(const char *v) { return json_some(json_end(v)); }
static inline const char *json_value(const char *key) { return json_skip(json_end(key)); }
static inline int json_is(const char *v, const char *text)
{
    const size_t n = strlen(text);
    return v && *v == '"' && !strncmp(v + 1, text, n) && v[n + 1] == '"';
}
static inline const char *json_at(const char *object, const char *key)
{
    const char *k, *v;
    for (k = json_first(object); k; k = json_next(v)) {
        v = json_value(k);
        if (json_is(k, key)) return strncmp(v, "null", 4) ? v : NULL;
    }
    return NULL;
}
static inline double json_number(const char *object, const char *key, double otherwise)
{
    const char *v = json_at(object, key);
    return !v ? otherwise : *v == 't' ? 1 : strtod(v, NULL);
}

/* ---- safetensors: eight bytes that say how long the JSON header is, the header, the arrays ----------------------- */

enum { NAME = 200, PATH = 1000 };                      /* bytes of names */

typedef struct tensor { char name[NAME]; const char *type; const unsigned char *data; size_t bytes; } tensor;
typedef struct tensors { tensor *at; size_t count; } tensors;

static inline const unsigned char *map_file(const char *path, size_t *bytes)
{
    const int file = open(path, O_RDONLY);
    struct stat s;
    void *p = MAP_FAILED;
    if (file >= 0 && !fstat(file, &s)) p = mmap(NULL, *bytes = (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    example_must(p != MAP_FAILED, path, "can not be read");
    close(file);
    return (const unsigned char *)p;
}
static inline int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}

static inline void add_file(tensors *all, const char *path)
{
    size_t size, begin, end;
    const unsigned char *file = map_file(path, &size);
    const char *key, *value, *offset;
    uint64_t header = 0;
    char *text;
    if (size >= 8) memcpy(&header, file, 8);
    example_must(size >= 8 && header <= size - 8, path, "no safetensors file");
    text = json_text(file + 8, (size_t)header);
    for (key = json_first(text); key; key = json_next(value)) {
        tensor *t;
        value = json_value(key);
        if (json_is(key, "__metadata__")) continue;
        all->at = (tensor *)realloc(all->at, (all->count + 1) * sizeof *all->at);
        example_must(all->at != NULL, "realloc", "out of memory");
        t = &all->at[all->count++];
        offset = json_first(json_at(value, "data_offsets"));
        example_must(offset && json_next(offset) && json_end(key) - key < NAME, path,
                     "a tensor has no offsets, or a long name");
        begin = (size_t)strtoull(offset, NULL, 10);
        end = (size_t)strtoull(json_next(offset), NULL, 10);
        example_must(begin <= end && end <= size - 8 - header, path, "a tensor lies outside");
        snprintf(t->name, NAME, "%.*s", (int)(json_end(key) - key) - 2, key + 1);
        t->type = json_at(value, "dtype");
        t->data = file + 8 + header + begin;
        t->bytes = end - begin;
    }
    qsort(all->at, all->count, sizeof *all->at, by_name);
}
/* model.safetensors, or model-00001-of-00003.safetensors and so on. */
static inline void add_folder(tensors *all, const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[PATH];
    example_must(d != NULL, folder, "can not be read");
    while ((e = readdir(d)) != NULL) {
        const char *end = strrchr(e->d_name, '.');
        if (strncmp(e->d_name, "model", 5) || !end || strcmp(end, ".safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        add_file(all, path);
    }
    closedir(d);
}
static inline const tensor *tensor_of(const tensors *all, const char *name)   /* NULL: there is none */
{
    tensor key;
    snprintf(key.name, NAME, "%s", name);
    return all->count ? (const tensor *)bsearch(&key, all->at, all->count, sizeof key, by_name) : NULL;
}
#endif
