/* moek/names.h -- names: of statuses, formats, activations, operations, architectures, backends, types. */
#ifndef MOEK_HOST_NAMES_H
#define MOEK_HOST_NAMES_H
#include "facts.h"

const char *moek_status_name(moek_status status)
{
    switch (status) {
#define MOEK_CASE_(name, number, text) case MOEK_##name: return "MOEK_" #name;
    MOEK_EACH_STATUS(MOEK_CASE_)
#undef MOEK_CASE_
    default: return "MOEK_E_?";
    }
}

const char *moek_status_text(moek_status status)
{
    switch (status) {
#define MOEK_CASE_(name, number, text) case MOEK_##name: return text;
    MOEK_EACH_STATUS(MOEK_CASE_)
#undef MOEK_CASE_
    default: return "not a status of this version";
    }
}

const char *moek_quant_name(int quant)
{
    const moek_format *const f = moek_format_of(quant);
    return f ? f->name : NULL;
}

const char *moek_act_name(int act)
{
    switch (act) {
#define MOEK_CASE_(NAME, name, number, gated) case number: return #name;
    MOEK_EACH_ACT(MOEK_CASE_)
#undef MOEK_CASE_
    default: return NULL;
    }
}

static const char *moek_op_name_(int op)
{
    switch (op) {
#define MOEK_CASE_(NAME, name, number) case number: return #name;
    MOEK_EACH_OP(MOEK_CASE_)
#undef MOEK_CASE_
    default: return "?";
    }
}

static const char *moek_arch_name_(int arch)
{
    switch (arch) {
#define MOEK_CASE_(NAME, name, number) case number: return #name;
    MOEK_EACH_ARCH(MOEK_CASE_)
#undef MOEK_CASE_
    default: return "?";
    }
}

static const char *moek_backend_name_(int backend)
{
    int i;
    for (i = 0; i < MOEK_BACKENDS_; i++)
        if (moek_backends_[i].number == backend) return moek_backends_[i].name;
    return NULL;
}

static const char *moek_format_name_(int format) { return format == MOEK_BATCHED ? "batched" : "standard"; }
static const char *moek_dtype_name_(int dtype)
{
    return dtype == MOEK_DTYPE_FP16 ? "fp16" : dtype == MOEK_DTYPE_F32 ? "f32" : "bf16";
}
#endif
