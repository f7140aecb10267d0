/* moek/plan/chosen.h -- what a plan and a selection have for the library alone.  Callers ask moek_selection_of and
 * moek_describe: these fields may change in any version. */
#ifndef MOEK_CHOSEN_H
#define MOEK_CHOSEN_H
#include <stddef.h>
#include "../ops.h"

struct moek_kernel;
struct moek_format;

enum { MOEK_MAX_TILES = 12, MOEK_MAX_CHOICES = 32, MOEK_PLACES = 32 };

/* Computed (moek/plan/bounds.h): a tile is taken up to so many rows an expert, and from `again` to `last`. */
typedef struct moek_bound { int rows, again, last; } moek_bound;
typedef struct moek_choice { int tokens, gemms; } moek_choice;    /* up to so many tokens: up[gemms], down[gemms] */
/* Or: the built-in rule; up to LAYER layer[LAYER - gemms]; up to UP_DOWN up_down[UP_DOWN - gemms]. */
enum { MOEK_CHOICE_RULE = -1, MOEK_CHOICE_LAYER = -2, MOEK_CHOICE_UP_DOWN = MOEK_CHOICE_LAYER - MOEK_MAX_TILES };

typedef struct moek_chosen {
    const struct moek_kernel *route, *map, *sort, *quant, *combine;   /* quant: of x; of h, too, unless h_quant says  */
    const struct moek_kernel *h_quant;                                /* another, where config.down_quant is another  */
    const struct moek_format *format, *h_format;                      /* of gate, up and x; of w_down and h           */
    const struct moek_kernel *up[MOEK_MAX_TILES], *down[MOEK_MAX_TILES];
    const struct moek_kernel *layer[MOEK_MAX_TILES];
    const struct moek_kernel *up_down[MOEK_MAX_TILES];
    const struct moek_kernel *expand; /* config.expand_weights: makes e4m3 of weights; else NULL                      */
    int tiles;                        /* pairs of up and down rows, smallest tile first                               */
    int gemms;                        /* the tiles, and behind them up[expanded], and what only measured choices take */
    int expanded;                     /* up[expanded], down[expanded] multiply what expand makes; 0: there are none   */
    int layers;                       /* rows that are a whole layer of few tokens, smallest tile first               */
    int layers_demanded;              /* config.kernel is one of them: not only where they are known to win           */
    int up_downs;                     /* rows that do up, quantization of h and down in one launch, smallest first    */
    int up_downs_demanded;            /* config.kernel is one of them: wherever it can serve                          */
    int choices;                      /* measured choices (config.tuned) in force, fewest tokens first                */
    moek_choice choice[MOEK_MAX_CHOICES];      /* more tokens than the last has: the built-in rule                    */
    int multiprocessors;              /* of the device; 0 on the CPU                                                  */
    int one_rank;                     /* prepare_finalize is moek_local or moek_batched: rows stay on this rank       */
    int cpu;                          /* on the CPU: the best set whose kernels it may take (config.cpu)              */
    int computed;                     /* 1: bound[i] of each tile is computed; 0: bounds are as measured on H200      */
    moek_bound bound[MOEK_MAX_TILES];
    int mhz, gbs, l2_kb;              /* of the device, if so.  gbs: else of the H200                                 */
    size_t places[MOEK_PLACES];       /* where parts of the workspace begin (moek/plan/workspace.h)                   */
    moek_gemm_args gemm[2];           /* up, down: sizes, and once bound the weights; a run adds the rest             */
    moek_route_args router;           /* once bound: the same of routing                                              */
} moek_chosen;

typedef struct moek_details {
    int tile;                         /* without layer, up_down: up and down are chosen.up[tile], chosen.down[tile]   */
    int self_sorts;                   /* 1: up sorts slots itself, no sort is launched                                */
    int counts_ids;                   /* 1: up or up_down counts ids itself, and begins beside sort and quantization  */
    int sorted_x;                     /* 1: x is written in sorted order, a row a slot, for TMA                       */
    int requantizes;                  /* 1: up quantizes h itself, no launch does it                                  */
    int x_sms, h_sms;                 /* SMs for the quantization of x and of h; 0: all                               */
    int discards;                     /* 1: combine lets L2 forget what it has read                                   */
    int expands;                      /* 1: weights become e4m3 first; tile is expanded then                          */
} moek_details;
#endif
