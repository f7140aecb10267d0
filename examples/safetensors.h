/* safetensors.h -- reads JSON, and the tensors of a folder of Hugging Face, which stay where the files are mapped.
 *
 *     tensors t = { 0 };
 *     if (!add_folder(&t, folder)) puts(t.why);       a sentence: which file, what is wrong with it
 *     const tensor *w = tensor_of(&t, "model.layers.0.mlp.gate.weight");
 *
 * For checkpoint.h and moe_lm.c.  Files may be damaged: JSON is checked before it is read, and of each tensor that its
 * shape has as many bytes as there are, inside the file, at an address that its type may have.  Names have no escapes.
 * A file that is cut short while the program runs is a bus error, as with all mapped files. */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME = 200, PATH = 1000, WHY = 800, DIMS = 8, NESTED = 60 };    /* bytes of names, of sentences; depth of JSON */

/* A sentence for the user; returns 0. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static inline int say(char *why, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(why, WHY, format, list);
    va_end(list);
    return 0;
}

/* ---- JSON where it lies: a value is the address of its first character, NULL if there is none -------------------- */

static inline const char *json_skip(const char *p) { return p + strspn(p, " \t\r\n,:"); }
static inline const char *json_blank(const char *p) { return p + strspn(p, " \t\r\n"); }
static inline const char *json_string_end(const char *p)      /* behind a string; NULL: it has no end */
{
    for (p++; *p && *p != '"'; p++) if (*p == '\\' && !*++p) return NULL;
    return *p ? p + 1 : NULL;
}
static inline const char *json_word_end(const char *p)
{
    static const char *const words[] = { "true", "false", "null", "NaN", "Infinity", "-Infinity" };
    const char *digits = p + (*p == '-'), *end;
    size_t i;
    for (i = 0; i < sizeof words / sizeof *words; i++)
        if (!strncmp(p, words[i], strlen(words[i]))) return p + strlen(words[i]);      /* (Python writes the last 3) */
    end = digits + strspn(digits, "0123456789.eE+-");
    return *digits >= '0' && *digits <= '9' ? end : NULL;
}
/* Behind a value; NULL: it is no JSON, or `depth` arrays and objects in each other are not enough. */
static inline const char *json_checked(const char *p, int depth)
{
    const char open = *p;
    const char close = open == '{' ? '}' : ']';
    if (open == '"') return json_string_end(p);
    if (open != '{' && open != '[') return json_word_end(p);
    if (!depth) return NULL;
    p = json_blank(p + 1);
    if (*p == close) return p + 1;
    for (;;) {
        if (open == '{') {
            p = *p == '"' ? json_string_end(p) : NULL;
            if (!p || *(p = json_blank(p)) != ':') return NULL;
            p = json_blank(p + 1);
        }
        p = json_checked(p, depth - 1);
        if (!p) return NULL;
        p = json_blank(p);
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
        p = json_blank(p + 1);
    }
}
/* A copy of an object, with an end, which stays; NULL: it is none, and why says what the file at `path` has instead. */
static inline char *json_text(const unsigned char *from, size_t bytes, const char *path, char *why)
{
    char *text = (char *)calloc(bytes + 1, 1);
    const char *end;
    if (!text) {
        say(why, "%s: out of memory", path);
        return NULL;
    }
    if (bytes) memcpy(text, from, bytes);
    end = json_blank(text);
    end = *end == '{' ? json_checked(end, NESTED) : NULL;
    if (end && (size_t)(json_blank(end) - text) == bytes) {
        const char *first = json_blank(text);
        return (char *)memmove(text, first, strlen(first) + 1);
    }
    free(text);
    say(why, "%s: no JSON object; is the file damaged?", path);
    return NULL;
}

static inline const char *json_end(const char *p)             /* behind a value */
{
    int depth = 0;
    do {
        if (*p == '"') p = json_string_end(p);
        else if (*p == '{' || *p == '[') depth++, p++;
        else if (*p == '}' || *p == ']') depth--, p++;
        else p += strcspn(p, " \t\r\n,:{}[]\"");
        if (depth > 0) p = json_skip(p);
    } while (depth > 0);
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
    for (k = object && *object == '{' ? json_first(object) : NULL; k; k = json_next(v)) {
        v = json_value(k);
        if (json_is(k, key)) return strncmp(v, "null", 4) ? v : NULL;
    }
    return NULL;
}
/* A value for a sentence: a string without its quotes, or text without line breaks; at most 60 characters. */
static inline const char *json_shown(const char *v, char to[64])
{
    const int quotes = v && *v == '"';
    const char *end;
    int n = 0;
    *to = 0;
    if (!v) return to;
    end = json_end(v) - quotes;
    for (v += quotes; v < end && n < 60; v++) {
        if (*v == '\n') v += strspn(v, " \t\r\n");     /* (and how the next line is indented) */
        if (v < end) to[n++] = *v;
    }
    strcpy(to + (n < 60 ? n : 57), n < 60 ? "" : "...");
    return to;
}
static inline int json_true(const char *object, const char *key, int otherwise)
{
    const char *v = json_at(object, key);
    return !v ? otherwise : *v == 't' || (*v >= '1' && *v <= '9');
}
/* A number, or `otherwise` if there is none, from least to most; else 0 is returned, and why has a sentence. */
static inline int json_real(const char *object, const char *key, double otherwise, double least, double most,
                            double *to, char *why)
{
    const char *v = json_at(object, key);
    char shown[64];
    *to = !v ? otherwise : *v == '-' || (*v >= '0' && *v <= '9') ? strtod(v, NULL) : (double)NAN;
    if (*to >= least && *to <= most) return 1;
    return say(why, "%s is %s; it must be a number from %.10g to %.10g", key, v ? json_shown(v, shown) : "missing",
               least, most);
}
static inline int json_whole(const char *object, const char *key, int otherwise, int least, int most, int *to,
                             char *why)
{
    double number;
    char shown[64];
    *to = least;
    if (!json_real(object, key, otherwise, least, most, &number, why)) return 0;
    *to = (int)number;
    return number == *to || say(why, "%s is %s; it must be a whole number", key,
                                json_shown(json_at(object, key), shown));
}

/* ---- safetensors: eight bytes that say how long the JSON header is, the header, the arrays ----------------------- */

typedef struct tensor {
    char name[NAME];
    const char *type;                                  /* "BF16", where the header has it: ask json_is */
    const unsigned char *data;
    size_t bytes, count;                               /* count: of elements; of bytes, if the type is unknown here */
    int dims;
    size_t shape[DIMS];
} tensor;
typedef struct mapped { const unsigned char *at; size_t bytes; char *text; } mapped;   /* a file, its header */
typedef struct tensors {
    tensor *at;
    size_t count, room;
    mapped *file;
    size_t files;
    char why[WHY];                                     /* where a function returned 0 */
} tensors;

/* A piece of `bytes` at *at, aligned; memory NULL: only counted. */
static inline void *memory_piece(char *memory, size_t *at, size_t bytes)
{
    void *p = memory && bytes ? memory + *at : NULL;
    *at += (bytes + 255) / 256 * 256;
    return p;
}
/* The whole file, mapped; NULL: a sentence in why. */
static inline const unsigned char *map_file(const char *path, size_t *bytes, char *why)
{
    struct stat s;
    void *p = MAP_FAILED;
    int file;
    *bytes = 0;
    if (stat(path, &s) || !S_ISREG(s.st_mode)) {       /* (a pipe would be waited for) */
        say(why, "%s: there is no such file", path);
        return NULL;
    }
    file = s.st_size > 0 ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        p = mmap(NULL, *bytes = (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        close(file);
    }
    if (p != MAP_FAILED) return (const unsigned char *)p;
    say(why, s.st_size > 0 ? "%s: it can not be read" : "%s: the file is empty", path);
    return NULL;
}
static inline size_t type_bytes(const char *type)             /* of an element; 0: unknown */
{
    static const struct { const char *name; int bytes; } types[] = {
        { "BF16", 2 }, { "F16", 2 }, { "F32", 4 }, { "F64", 8 }, { "U8", 1 }, { "I8", 1 }, { "BOOL", 1 }, { "I16", 2 },
        { "U16", 2 }, { "I32", 4 }, { "U32", 4 }, { "I64", 8 }, { "U64", 8 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 },
        { "F8_E8M0", 1 }
    };
    size_t i;
    for (i = 0; i < sizeof types / sizeof *types; i++) if (json_is(type, types[i].name)) return (size_t)types[i].bytes;
    return 0;
}
/* A size or an offset of a header: digits that fit; 0: it is none. */
static inline int read_size(const char *v, size_t *to)
{
    const size_t digits = v ? strspn(v, "0123456789") : 0;
    *to = 0;
    if (!digits || digits > 18 || json_end(v) != v + digits) return 0;
    *to = (size_t)strtoull(v, NULL, 10);
    return 1;
}
/* A tensor of the header; arrays: where its offsets start from, and how many bytes are there. */
static inline int read_tensor(tensor *t, const char *key, const char *value, const unsigned char *arrays, size_t room,
                              const char *path, char *why)
{
    const char *offset = json_first(json_at(value, "data_offsets")), *side;
    const int length = (int)(json_end(key) - key) - 2;
    size_t begin, end, bytes, size;
    if (length >= NAME) return say(why, "%s: the name of a tensor has %d characters", path, length);
    snprintf(t->name, NAME, "%.*s", length, key + 1);
    t->type = json_at(value, "dtype");
    if (!t->type || *t->type != '"') return say(why, "%s: tensor %s has no dtype", path, t->name);
    if (!read_size(offset, &begin) || !read_size(json_next(offset), &end))
        return say(why, "%s: tensor %s has no data_offsets", path, t->name);
    if (begin > end || end > room) return say(why, "%s: tensor %s lies outside of the file", path, t->name);
    bytes = type_bytes(t->type);
    t->data = arrays + begin;
    t->bytes = t->count = end - begin;
    t->dims = 0;
    for (size = 1, side = json_first(json_at(value, "shape")); side; side = json_next(side)) {
        if (t->dims == DIMS || !read_size(side, &t->shape[t->dims]))
            return say(why, "%s: tensor %s has no shape", path, t->name);
        if (t->shape[t->dims] && size > (size_t)-1 / t->shape[t->dims])
            return say(why, "%s: tensor %s has a shape that no file holds", path, t->name);
        size *= t->shape[t->dims++];
    }
    if (!bytes) return 1;
    t->count = t->bytes / bytes;
    if (t->count != size || t->bytes % bytes)
        return say(why, "%s: tensor %s has %zu bytes, but its shape wants %zu elements of %zu", path, t->name, t->bytes,
                   size, bytes);
    if ((size_t)t->data % bytes)
        return say(why, "%s: tensor %s begins at an odd address: elements of %zu bytes can not be read there; save the "
                   "file anew (headers are padded to 8 bytes since safetensors 0.3)", path, t->name, bytes);
    return 1;
}
static inline int keep_file(tensors *all, const unsigned char *at, size_t bytes, char *text)
{
    mapped *more = (mapped *)realloc(all->file, (all->files + 1) * sizeof *more);
    if (!more) return say(all->why, "out of memory");
    all->file = more;
    all->file[all->files].at = at; all->file[all->files].bytes = bytes;
    all->file[all->files++].text = text;
    return 1;
}
static inline int add_file(tensors *all, const char *path)
{
    size_t size;
    const unsigned char *file = map_file(path, &size, all->why);
    const char *key, *value;
    uint64_t header = 0;
    char *text;
    if (!file) return 0;
    if (size >= 8) memcpy(&header, file, 8);
    if (size < 8 || header > size - 8) return say(all->why, "%s: no safetensors file: its header is not there", path);
    text = json_text(file + 8, (size_t)header, path, all->why);
    if (!text || !keep_file(all, file, size, text)) return 0;
    for (key = json_first(text); key; key = json_next(value)) {
        value = json_value(key);
        if (json_is(key, "__metadata__")) continue;
        if (all->count == all->room) {
            tensor *more = (tensor *)realloc(all->at, (all->room = 2 * all->room + 64) * sizeof *more);
            if (!more) return say(all->why, "%s: out of memory", path);
            all->at = more;
        }
        if (!read_tensor(&all->at[all->count], key, value, file + 8 + header, size - 8 - (size_t)header, path,
                         all->why)) return 0;
        all->count++;
    }
    return 1;
}

static inline int by_name(const void *a, const void *b)
{
    return strcmp(((const tensor *)a)->name, ((const tensor *)b)->name);
}
static inline const tensor *tensor_of(const tensors *all, const char *name)   /* NULL: there is none */
{
    size_t low = 0, high = all->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int side = strcmp(name, all->at[middle].name);
        if (!side) return &all->at[middle];
        if (side < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
static inline int sort_tensors(tensors *all, const char *folder)
{
    size_t i;
    if (all->count) qsort(all->at, all->count, sizeof *all->at, by_name);
    for (i = 1; i < all->count; i++)
        if (!by_name(&all->at[i - 1], &all->at[i]))
            return say(all->why, "%s: %s is there twice: are files of two checkpoints in it?", folder, all->at[i].name);
    return 1;
}
/* model.safetensors, or all *.safetensors but those of `consolidated`, which some publish a second time. */
static inline int add_folder(tensors *all, const char *folder)
{
    char path[PATH];
    struct dirent *e;
    struct stat s;
    int good = 1, files = 0;
    DIR *d;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!stat(path, &s)) return add_file(all, path) && sort_tensors(all, folder);
    d = opendir(folder);
    if (!d) return say(all->why, "%s: the folder can not be read", folder);
    while (good && (e = readdir(d)) != NULL) {
        const char *end = strrchr(e->d_name, '.');
        if (!end || strcmp(end, ".safetensors") || !strncmp(e->d_name, "consolidated", 12)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        good = add_file(all, path);
        files++;
    }
    closedir(d);
    if (good && !files) return say(all->why, "%s: there is no safetensors file in the folder", folder);
    return good && sort_tensors(all, folder);
}
/* All files and names go. */
static inline void close_tensors(tensors *all)
{
    size_t i;
    for (i = 0; i < all->files; i++) {
        free(all->file[i].text);
        munmap((void *)(size_t)all->file[i].at, all->file[i].bytes);
    }
    free(all->at); free(all->file);
    memset(all, 0, sizeof *all);
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static inline float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float float_of_half(unsigned h)
{
    const uint32_t sign = (h & 0x8000u) << 16, size = (h & 0x7fffu) << 13;
    if (h & 0x7c00 && (h & 0x7c00) != 0x7c00) return float_of_bits(sign | (size + (112u << 23)));
    if (h & 0x7c00) return float_of_bits(sign | size | 0x7f800000u);   /* Inf, or NaN with its payload */
    return (sign ? -1.0f : 1.0f) * (float)(h & 0x3ff) * (1.0f / 16777216);
}
/* To nearest, ties to even. */
static inline uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return f != f ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static inline uint16_t half_of(float f)
{
    const uint16_t sign = (uint16_t)(signbit(f) ? 0x8000 : 0);
    const float size = fabsf(f);
    int exponent;
    if (f != f) return 0x7e00;
    if (size == 0) return sign;                        /* (frexpf gives zero the exponent 0) */
    if (size >= 65520) return (uint16_t)(sign | 0x7c00);
    frexpf(size, &exponent);
    if (exponent < -13) return (uint16_t)(sign | (int)nearbyintf(ldexpf(size, 24)));
    return (uint16_t)(sign + (exponent + 13) * 1024 + (int)nearbyintf(ldexpf(size, 11 - exponent)));
}
/* Is it of a type that tensor_number reads? */
static inline int tensor_has_numbers(const tensor *t)
{
    return json_is(t->type, "BF16") || json_is(t->type, "F16") || json_is(t->type, "F32") ||
           json_is(t->type, "F8_E8M0") || json_is(t->type, "U8");
}
static inline float tensor_number(const tensor *t, size_t i)  /* U8: e8m0, too */
{
    uint32_t u;
    if (t->bytes == t->count) return t->data[i] == 255 ? NAN : ldexpf(1, (int)t->data[i] - 127);
    if (t->bytes == 2 * t->count) {
        u = t->data[2 * i] | (uint32_t)t->data[2 * i + 1] << 8;
        return json_is(t->type, "BF16") ? float_of_bits(u << 16) : float_of_half(u);
    }
    memcpy(&u, t->data + 4 * i, 4);
    return float_of_bits(u);
}
#endif
