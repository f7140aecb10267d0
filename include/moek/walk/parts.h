/* moek/walk/parts.h -- the built-in parts: `local` and `batched`, and the experts made of kernels of the table. */
#ifndef MOEK_PARTS_H
#define MOEK_PARTS_H
#include "experts.h"
#include "finalize.h"
#include "prepare.h"

static size_t moek_one_rank_workspace_(const moek_prepare_finalize *self, const moek_plan *plan)
{
    size_t at[MOEK_PLACES];
    (void)self;
    return moek_one_rank_layout_(plan, at);
}

static size_t moek_table_workspace_(const moek_experts *self, const moek_plan *plan)
{
    size_t at[MOEK_PLACES];
    (void)self;
    return moek_table_layout_(plan, at);
}

const moek_prepare_finalize moek_local = {
    "local", MOEK_STANDARD, 0, 1, 0, 0, NULL, NULL, moek_one_rank_workspace_,
    moek_local_prepare_, moek_nothing_, moek_nothing_to_send_, moek_one_rank_finalize_, 0, 0, NULL
};
const moek_prepare_finalize moek_batched = {
    "batched", MOEK_BATCHED, 0, 1, 0, 1, NULL, NULL, moek_one_rank_workspace_,
    moek_batched_prepare_, moek_nothing_, moek_nothing_to_send_, moek_one_rank_finalize_, 0, 0, NULL
};

const moek_experts moek_standard_experts = {
    "table", MOEK_STANDARD, MOEK_DELEGATE, 0, NULL, NULL, moek_table_workspace_, moek_table_apply_
};
const moek_experts moek_batched_experts = {
    "table_batched", MOEK_BATCHED, MOEK_DELEGATE, 0, NULL, NULL, moek_table_workspace_, moek_table_apply_
};
#endif
