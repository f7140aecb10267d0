/* test_ep_protocol.c -- the protocol between ranks (moek/ep/wire.h) by itself: threads as ranks, payload checked word
 * by word, random delays, two operations in flight, totals that wrap, ranks that stop.  To run under ThreadSanitizer.
 *
 *   cc -std=c99 -fsanitize=thread -O1 -g -DMOEK_ARCH=0 -DMOEK_QUANT=MOEK_BF16 -Iinclude \
 *      tests/ep/test_ep_protocol.c -pthread -lm -o ep_protocol && ./ep_protocol [quick]
 *
 * An operation here is one phase: grant, store, publish; arrive, load, release.  In a layer the phases that follow also
 * keep ranks apart; without them only credits do. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif
#include <stdint.h>
#include <time.h>
#include <sched.h>
#include <pthread.h>

static uint64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
static __thread uint32_t chance_state = 1;
static uint32_t chance(uint32_t n)
{
    chance_state = chance_state * 1664525u + 1013904223u;
    return (chance_state >> 8) % n;
}
/* Nothing, another thread's turn, or a while. */
static void perhaps_later(void)
{
    struct timespec t = { 0, 20000 };
    const uint32_t n = chance(64);
    if (n == 0) nanosleep(&t, NULL);
    else if (n < 8) sched_yield();
}
static void pause_a_while(void) { sched_yield(); perhaps_later(); }

#define MOEK_EP_MS() milliseconds()
#define MOEK_EP_PAUSE() pause_a_while()
#define MOEK_IMPLEMENTATION
#include "moek_ep.h"
#include "ep_fields.h"
#include "../quick.h"

enum { RANKS = 8, ROWS = 5, HIDDEN = 16, WORDS = HIDDEN / 2 };

typedef struct member {
    struct group *group;
    int number, operations, in_flight, stop_at;        /* stop_at: in the middle of its stores; below 0: never */
    moek_ep ep;
    moek_status status;
    uint64_t wrong, words, done, ended;                /* ended: when it was told of an error, in ms */
    uint32_t seed;
} member;
typedef struct group {
    int ranks;
    moek_config layer;
    moek_ep_config config;
    void *base[RANKS];
    member rank[RANKS];
} group;

/* ---- a group ----------------------------------------------------------------------------------------------------- */

static void each(group *g, void *(*what)(void *))
{
    pthread_t thread[RANKS];
    int r;
    for (r = 0; r < g->ranks; r++) if (pthread_create(&thread[r], NULL, what, &g->rank[r])) abort();
    for (r = 0; r < g->ranks; r++) pthread_join(thread[r], NULL);
}
static void *open_numbered(void *p)
{
    member *m = (member *)p;
    moek_ep_config c = m->group->config;
    c.rank = m->number;
    m->status = moek_ep_open(&m->ep, &c, m->group->base);
    return NULL;
}
static group *group_new(int ranks, int timeout_ms)
{
    group *g = (group *)calloc(1, sizeof *g);
    moek_config *l = &g->layer;
    size_t size;
    int r;
    l->hidden = HIDDEN; l->inter = 16; l->experts = 8; l->topk = 2; l->quant = FORMAT_PLAIN; l->act = MOEK_SILU;
    l->max_tokens = ROWS;
    g->ranks = g->config.ranks = ranks;
    g->config.layer = l;
    g->config.kind = MOEK_EP_ALLGATHER;
    g->config.handles = 2;
    g->config.timeout_ms = timeout_ms;
    size = moek_ep_window_size(&g->config);
    for (r = 0; r < ranks; r++) {
        g->base[r] = mem_alloc(0, size);
        memset(g->base[r], 0, size);
        g->rank[r].group = g;
        g->rank[r].number = r;
        g->rank[r].stop_at = -1;
        g->rank[r].seed = (uint32_t)(ranks * 100 + r);
    }
    each(g, open_numbered);
    for (r = 0; r < ranks; r++)
        CHECK(g->rank[r].status == MOEK_OK, "rank %d of %d does not open: %s", r, ranks, g->rank[r].ep.why);
    return g;
}
static void group_free(group *g)
{
    int r;
    for (r = 0; r < g->ranks; r++) mem_free(0, g->base[r]);
    free(g);
}

/* ---- an operation ------------------------------------------------------------------------------------------------ */

/* What rank `from` sends to rank `to` in operation n of a handle. */
static uint32_t mix(uint32_t a, uint32_t b)
{
    a = (a ^ b) * 2654435769u;
    return a ^ a >> 15;
}
static uint32_t word_of(int from, int to, int handle, int n, int row, int i)
{
    return mix(mix(mix((uint32_t)(from * 64 + to), (uint32_t)(handle * 16 + row)), (uint32_t)n), (uint32_t)i);
}
static int32_t rows_of(int from, int to, int handle, int n)
{
    const uint32_t r = word_of(from, to, handle, n, 15, 99);
    return r % 4 == 0 ? 0 : (int32_t)(r / 4 % (ROWS + 1));                         /* often nothing */
}
static uint32_t *row_at(const moek_ep *ep, int at, int handle, int from, int row)
{
    return (uint32_t *)moek_ep_field_(ep, at, handle, ep->layout.x, (size_t)(from * ROWS + row));
}
static void store(const member *m, int handle, int n, int32_t *counts)
{
    int p, row, i;
    for (p = 0; p < m->group->ranks; p++) {
        counts[p] = rows_of(m->number, p, handle, n);
        for (row = 0; row < counts[p]; row++)
            for (i = 0; i < WORDS; i++)
                row_at(&m->ep, p, handle, m->number, row)[i] = word_of(m->number, p, handle, n, row, i);
        perhaps_later();
    }
}
static moek_status send_it(member *m, int handle, int n)
{
    int32_t counts[RANKS];
    const moek_status status = moek_ep_grant_(&m->ep, MOEK_EP_DISPATCH, handle);
    if (status != MOEK_OK) return status;
    store(m, handle, n, counts);
    perhaps_later();
    return moek_ep_publish_(&m->ep, MOEK_EP_DISPATCH, handle, n & 0xff, counts);
}
static void load_and_check(member *m, int handle, int n, const int32_t *counts)
{
    int p, row, i;
    for (p = 0; p < m->group->ranks; p++) {
        m->wrong += counts[p] != rows_of(p, m->number, handle, n);
        for (row = 0; row < counts[p]; row++)
            for (i = 0; i < WORDS; i++, m->words++)
                m->wrong += row_at(&m->ep, m->number, handle, p, row)[i] != word_of(p, m->number, handle, n, row, i);
        perhaps_later();
    }
}
static moek_status receive_it(member *m, int handle, int n)
{
    int32_t counts[RANKS];
    const moek_status status = moek_ep_arrive_(&m->ep, MOEK_EP_DISPATCH, handle, n & 0xff, counts);
    if (status != MOEK_OK) return status;
    perhaps_later();
    load_and_check(m, handle, n, counts);
    moek_ep_release_(&m->ep, MOEK_EP_DISPATCH, handle);
    return MOEK_OK;
}

static void *many_operations(void *p)
{
    member *m = (member *)p;
    int n, k, odd;
    chance_state = m->seed;
    m->status = MOEK_OK;
    for (n = 0; n < m->operations && m->status == MOEK_OK; n++) {
        if (n == m->stop_at) {                         /* half of what it would have sent, and not a word more */
            int32_t counts[RANKS];
            if (moek_ep_grant_(&m->ep, MOEK_EP_DISPATCH, 0) == MOEK_OK) store(m, 0, n, counts);
            return NULL;
        }
        odd = (int)chance(2);                          /* the handles need no common order */
        for (k = 0; k < m->in_flight && m->status == MOEK_OK; k++)
            m->status = send_it(m, m->in_flight > 1 ? k ^ odd : 0, n);
        odd = (int)chance(2);
        for (k = 0; k < m->in_flight && m->status == MOEK_OK; k++)
            m->status = receive_it(m, m->in_flight > 1 ? k ^ odd : 0, n);
        m->done += m->status == MOEK_OK;
    }
    m->ended = milliseconds();
    return NULL;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static uint64_t words;

static void soak(int ranks, int in_flight, int operations)
{
    group *g = group_new(ranks, 60000);
    int r;
    for (r = 0; r < ranks; r++) { g->rank[r].in_flight = in_flight; g->rank[r].operations = operations; }
    each(g, many_operations);
    for (r = 0; r < ranks; r++) {
        const member *m = &g->rank[r];
        CHECK(m->status == MOEK_OK && m->done == (uint64_t)operations, "%d ranks, rank %d: %s after %d operations",
              ranks, r, moek_status_name(m->status), (int)m->done);
        CHECK(!m->wrong && m->words, "%d ranks, rank %d: %d wrong words of %d", ranks, r, (int)m->wrong, (int)m->words);
        words += m->words;
    }
    group_free(g);
}
static void test_soak(void)
{
    const int part = quick_set ? 10 : 1;               /* one operation of so many */
    soak(1, 1, 300 / part);
    soak(2, 1, 6000 / part);
    soak(2, 2, 6000 / part);
    soak(3, 2, 3000 / part);
    soak(4, 1, 2000 / part);
    soak(4, 2, 2000 / part);
    soak(8, 2, 500 / part);
}

/* Totals and counts of operations that run over. */
static void test_wrap(void)
{
    group *g = group_new(3, 60000);
    const uint64_t total = 0 - ((uint64_t)5 << 40) - 7, operations = (uint64_t)0 - 3;
    int r, p, handle;
    for (r = 0; r < 3; r++) {
        for (handle = 0; handle < 2; handle++) {
            const moek_ep_totals_ t = moek_ep_local_(&g->rank[r].ep, MOEK_EP_DISPATCH, handle);
            *t.operations = operations;
            for (p = 0; p < 3; p++) {
                t.sent[p] = t.seen[p] = total;
                *moek_ep_flag_(&g->rank[r].ep, r, 0, MOEK_EP_DISPATCH, handle, p) = total;
                *moek_ep_flag_(&g->rank[r].ep, r, 1, MOEK_EP_DISPATCH, handle, p) = operations;
            }
        }
        g->rank[r].in_flight = 2;
        g->rank[r].operations = 200;
    }
    each(g, many_operations);
    for (r = 0; r < 3; r++)
        CHECK(g->rank[r].status == MOEK_OK && !g->rank[r].wrong && g->rank[r].done == 200, "wrap: rank %d: %s", r,
              moek_status_name(g->rank[r].status));
    group_free(g);
}

/* A rank stops in the middle of its stores: the others end with an error within the time limit, and never see what was
 * half written. */
static void kill_one(int ranks, int in_flight, int victim, int at)
{
    enum { TIMEOUT = 700 };
    group *g = group_new(ranks, TIMEOUT);
    const uint64_t start = milliseconds();
    uint64_t first = 0, last = 0;
    int r, timeouts = 0;
    for (r = 0; r < ranks; r++) { g->rank[r].in_flight = in_flight; g->rank[r].operations = 100000; }
    g->rank[victim].stop_at = at;
    each(g, many_operations);
    for (r = 0; r < ranks; r++) {
        const member *m = &g->rank[r];
        moek_ep_error e;
        CHECK(!m->wrong, "killed: rank %d got %d wrong words", r, (int)m->wrong);
        if (r == victim) continue;
        CHECK(m->status == MOEK_E_TIMEOUT || m->status == MOEK_E_ABORTED, "killed: rank %d: %s", r,
              moek_status_name(m->status));
        CHECK(m->done <= (uint64_t)at + 1, "killed: rank %d did %d operations, the victim %d", r, (int)m->done, at);
        CHECK(moek_ep_poll(&m->ep, &e) == m->status && e.cause == MOEK_E_TIMEOUT && e.peer == victim &&
              e.phase == MOEK_EP_DISPATCH && e.reporter != victim, "killed: rank %d blames %d in phase %d", r, e.peer,
              e.phase);
        timeouts += m->status == MOEK_E_TIMEOUT;
        if (!first || m->ended < first) first = m->ended;
        if (m->ended > last) last = m->ended;
    }
    CHECK(timeouts >= 1, "killed: nobody timed out");
    CHECK(last - start < 20 * TIMEOUT && last - first < 10 * TIMEOUT, "killed: the last rank ended after %d ms, %d ms "
          "after the first", (int)(last - start), (int)(last - first));
    group_free(g);
}
static void test_killed(void)
{
    kill_one(2, 1, 0, 0);
    kill_one(2, 2, 1, 7);
    kill_one(4, 1, 2, 40);
    kill_one(4, 2, 3, 41);
    kill_one(8, 2, 5, 20);
}

/* Why there are credits: rank 0 is done with operation 0 and would go on; rank 1 has not looked yet.  In one thread. */
static void test_credits(void)
{
    group *g = group_new(2, 50);
    member *m = g->rank;
    int32_t counts[RANKS];
    int n = 0;
    while (!rows_of(0, 1, 0, n) || !rows_of(0, 1, 0, n + 1)) n++;                   /* rank 0 has something to say */
    CHECK(send_it(&m[0], 0, n) == MOEK_OK && send_it(&m[1], 0, n) == MOEK_OK && receive_it(&m[0], 0, n) == MOEK_OK,
          "the first operation");
    CHECK(send_it(&m[0], 0, n + 1) == MOEK_E_TIMEOUT, "rank 0 may send again, before rank 1 has looked");
    CHECK(receive_it(&m[1], 0, n) == MOEK_E_ABORTED, "rank 1 was not told");
    group_free(g);

    g = group_new(2, 50);                              /* with credits taken in time */
    m = g->rank;
    CHECK(send_it(&m[0], 0, n) == MOEK_OK && send_it(&m[1], 0, n) == MOEK_OK && receive_it(&m[0], 0, n) == MOEK_OK &&
          receive_it(&m[1], 0, n) == MOEK_OK && send_it(&m[0], 0, n + 1) == MOEK_OK, "a second operation");
    CHECK(!m[0].wrong && !m[1].wrong, "wrong words with credits");
    group_free(g);

    g = group_new(2, 50);                              /* and without: rank 1 finds the rows of the next operation */
    m = g->rank;
    CHECK(send_it(&m[0], 0, n) == MOEK_OK && send_it(&m[1], 0, n) == MOEK_OK && receive_it(&m[0], 0, n) == MOEK_OK,
          "the first operation");
    store(&m[0], 0, n + 1, counts);
    counts[0] = 1;
    counts[1] = 0;
    load_and_check(&m[1], 0, n, counts);
    CHECK(m[1].wrong > 2, "without credits nothing went wrong: then this test would not see it elsewhere either");
    counts[0] = counts[1] = 0;
    CHECK(moek_ep_publish_(&m[0].ep, MOEK_EP_DISPATCH, 0, 0, counts) == MOEK_OK &&   /* the tag stays what it is */
          receive_it(&m[1], 0, n) == MOEK_E_MISMATCH, "two operations at once are not noticed");
    group_free(g);
}

/* Another tag: a rank that runs something else.  The first error stays, and reaches all. */
static void test_errors(void)
{
    group *g = group_new(3, 60000);
    member *m = g->rank;
    const int32_t counts[RANKS] = { 0 };
    moek_ep_error e;
    uint64_t before;
    int r;
    CHECK(send_it(&m[0], 1, 0) == MOEK_OK && send_it(&m[1], 1, 1) == MOEK_OK && send_it(&m[2], 1, 0) == MOEK_OK,
          "send");
    CHECK(receive_it(&m[2], 1, 0) == MOEK_E_MISMATCH, "another tag");
    CHECK(moek_ep_poll(&m[2].ep, &e) == MOEK_E_MISMATCH && e.peer == 1 && e.handle == 1 && e.operation == 1 &&
          e.phase == MOEK_EP_DISPATCH && e.reporter == 2, "poll of the rank that failed");
    moek_ep_abort(&m[0].ep);                           /* too late */
    for (r = 0; r < 2; r++) {
        CHECK(receive_it(&m[r], 1, 0) == MOEK_E_ABORTED && send_it(&m[r], 0, 0) == MOEK_E_ABORTED,
              "rank %d goes on", r);
        CHECK(moek_ep_poll(&m[r].ep, &e) == MOEK_E_ABORTED && e.cause == MOEK_E_MISMATCH && e.reporter == 2 &&
              e.peer == 1, "rank %d: cause %d, reporter %d, peer %d", r, (int)e.cause, e.reporter, e.peer);
    }
    CHECK(moek_ep_poll(&m[2].ep, &e) == MOEK_E_MISMATCH, "the first error does not stay");
    e.status = MOEK_E_TIMEOUT;
    CHECK(moek_ep_keep_(&m[2].ep, &e) == MOEK_E_MISMATCH, "a second error takes its place");
    before = *moek_ep_flag_(&m[1].ep, 1, 0, MOEK_EP_DISPATCH, 0, 0);
    CHECK(moek_ep_publish_(&m[0].ep, MOEK_EP_DISPATCH, 0, 0, counts) == MOEK_E_ABORTED &&
          *moek_ep_flag_(&m[1].ep, 1, 0, MOEK_EP_DISPATCH, 0, 0) == before, "rows are announced after the end");
    group_free(g);
}

/* Each field that ranks compare, and they compare no other: its name is in the test's list.  (Not there: the version,
 * and the bytes of a window, which follow from the fields ahead of them.) */
static void test_fields(void)
{
    ep_fields_place place;
    moek_ep_two_ two;
    int i, f, known;
    memset(&place, 0, sizeof place);
    for (i = 1; i < MOEK_EP_HANDSHAKE_ - 1; i++) {
        for (known = f = 0; f < EP_FIELDS; f++) known |= !strcmp(ep_fields[f].name, moek_ep_compared_of_(i).name);
        CHECK(known, "ranks compare %s, and no test gives one of them another", moek_ep_compared_of_(i).name);
    }
    for (f = 0; f < EP_EMULATED; f++) ep_fields_test(f, &place);
    for (i = 0; strcmp(moek_ep_compared_of_(i).name, "limit"); i++) { }
    two = moek_ep_two_of_(i, moek_bits_(1.702f), moek_bits_(7));
    CHECK(!strcmp(two.a, "1.702") && !strcmp(two.b, "7"), "floats: %s and %s", two.a, two.b);
    two = moek_ep_two_of_(i, moek_bits_(1.702f), moek_bits_(1.702f) + 1);
    CHECK(strcmp(two.a, two.b), "floats: %s and %s", two.a, two.b);
    two = moek_ep_two_of_(1, (uint64_t)(int)-5, 7);
    CHECK(!strcmp(two.a, "-5") && !strcmp(two.b, "7"), "numbers: %s and %s", two.a, two.b);
}

static void run(const char *name, void (*test)(void))
{
    const int failed = check_failed;
    const uint64_t start = milliseconds();
    words = 0;
    test();
    printf("%-12s %6.2f s, %lu words  %s\n", name, (double)(milliseconds() - start) / 1000, (unsigned long)words,
           check_failed == failed ? "ok" : "FAILED");
    fflush(stdout);
}
#define RUN(test) run(#test, test)
int main(int argc, char **argv)
{
    quick_word(&argc, &argv);
    RUN(test_fields);
    RUN(test_credits);
    RUN(test_errors);
    RUN(test_soak);
    RUN(test_wrap);
    RUN(test_killed);
    return check_end();
}
