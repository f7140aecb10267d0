/* test_import.c -- moek_import.h: every source of MOEK_EACH_SOURCE, on the host and as kernels.
 *
 *   test_import [quick] [FOLDER OF import_golden.tsv, gguf_import_golden.tsv, quantize_golden.tsv]
 *
 * What a checkpoint's bytes mean is written here once more, element by element, from the page on formats: source_code,
 * source_scale, source_zero.  moek's arrays are read by ref.h. */
#ifdef MOEK_EMU
#include "../emu/emu.h"
#endif
#ifndef MOEK_SPLIT
#define MOEK_IMPLEMENTATION
#endif
#include "moek.h"
#include "moek_import.h"
#include "../check.h"
#include "../mem.h"
#include "../oracle/ref.h"
#include "../quick.h"
#include <limits.h>

enum { GUARD = 64, POISON = 0xa5 };
enum { ROWS, GROUPS, ONE, BLOCKS };
#define FACTS_(name, number, quant, codes, flip, scales, type, zeros, less, global) \
    { MOEK_FROM_##name, MOEK_##quant, MOEK_DTYPE_##type, scales },
static const struct { int source, quant, type, scales; } facts[] = { MOEK_EACH_SOURCE(FACTS_) };
enum { SOURCES = sizeof facts / sizeof facts[0] };
static int source_at(int source)
{
    int i = 0;
    while (facts[i].source != source) i++;
    return i;
}

#include "matrix.h"

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* The source may become it. */
static int fits(int i, const moek_format *f)
{
    const moek_format *const own = moek_format_of(facts[i].quant);
    return f->w == own->w && f->global_scale == own->global_scale && is_open(f) == is_open(own) && format_scaled(f) &&
           (facts[i].scales == ONE || f->w_scale.rows == own->w_scale.rows) &&
           (!gguf_of(facts[i].source) || f->blocks || f->w_scale.columns == gguf_of(facts[i].source)->group);
}
static matrix matrix_new(int i, const moek_format *f, int turn)
{
    static const int rows[] = { 8, 40, 24, 104 }, odd[] = { 7, 33, 1, 130 };
    matrix m;
    memset(&m, 0, sizeof m);
    m.source = facts[i].source;
    if (f->number != facts[i].quant || turn % 2) m.quant = f->number;
    m.block = m.source == MOEK_FROM_Q4_0_GGUF ? 32 : format_block(f, turn);
    m.format = format_with(f, m.block);
    m.dtype = turn % 2 ? MOEK_DTYPE_FP16 : MOEK_DTYPE_BF16;
    m.scale_dtype = facts[i].type;
    if (is_open(f) && turn % 3 && !gguf_of(m.source)) m.scale_dtype = turn % 3 == 1 ? m.dtype : MOEK_DTYPE_F32;
    if (is_open(f) && !is_int(&m) && turn % 5 == 4) m.scale_dtype = MOEK_DTYPE_E8M0;
    m.rows = m.source == MOEK_FROM_AWQ ? rows[turn % 4] : odd[turn % 4];
    m.columns = (m.format->w_scale.columns ? m.format->w_scale.columns : 34) * (1 + rng_below(5));
    if (gguf_of(m.source)) m.columns = gguf_of(m.source)->columns * (1 + rng_below(6));
    m.step = m.format->w_scale.rows > 1 ? 1 : 1 + turn / 2 % 2;
    m.told = turn / 3 % 2;
    m.swizzled = !is_open(f) && !gguf_of(m.source) && turn % 4 > 1;
    return m;
}
static void test_source(int i, const moek_format *f, int turns)
{
    int turn;
    for (turn = 0; turn < turns; turn++) {
        const int scales = turn / 2 % 3 == 2 ? HOSTILE : SANE, orders = turn % 4 == 3 && f->w_scale.rows < 2;
        matrix m = matrix_new(i, f, turn);
        int zeros = 0;
        if (takes_zero(m.source)) zeros = turn % 4;    /* none; lost; kept; made up (int8: middle ones) */
        m.has_zero = zeros == 1 || zeros == 2;
        m.keep_zero = zeros >= 2 && m.format->zero;
        if (orders) {
            m.row_order = random_order(m.rows);
            if (is_int(&m)) m.column_order = random_order(m.columns);
        }
        matrix_sizes(&m);
        matrix_fill(&m, scales, zeros == 2 && !m.format->zero);
        snprintf(m.what, sizeof m.what, "%s to %s %d x %d block %d T %d scales %d step %d zeros %d%s%s%s%s",
                 moek_source_name(m.source), f->name, m.rows, m.columns, m.block, m.dtype, m.scale_dtype, m.step, zeros,
                 scales == HOSTILE ? " hostile" : "", orders ? " orders" : "", m.told ? " told" : "",
                 m.swizzled ? " swizzled" : "");
        check_matrix(&m, scales);
        matrix_free(&m);
    }
}

#ifndef MOEK_EMU
/* So large that rows are shared out among threads, that tiles are full, and that some are not. */
static void test_large(int i)
{
    const moek_format *const f = moek_format_of(facts[i].quant);
    int turn;
    for (turn = 0; turn < 3; turn++) {
        matrix m = matrix_new(i, f, turn ? 4 * turn : 0);      /* none; lost or kept; with an order of rows */
        m.rows = 1112; m.columns = 1792 + (f->blocks ? 0 : f->w_scale.columns ? f->w_scale.columns : 36);
        if (gguf_of(m.source)) m.columns = m.source == MOEK_FROM_NVFP4_GGUF ? 1856 : 1824;
        m.step = 1;
        m.has_zero = turn && takes_zero(m.source);
        m.keep_zero = m.has_zero && f->zero;
        if (turn == 2 && f->w_scale.rows < 2) m.row_order = random_order(m.rows);
        matrix_sizes(&m);
        matrix_fill(&m, turn == 1 ? HOSTILE : SANE, m.has_zero && !f->zero);
        snprintf(m.what, sizeof m.what, "%s, large, turn %d", moek_source_name(m.source), turn);
        check_matrix(&m, turn == 1 ? HOSTILE : SANE);
        matrix_free(&m);
    }
}
#endif

#include "layers.h"
#include "refusals.h"
#include "quantize_blocks.h"

int main(int argc, char **argv)
{
    int i, n;
    quick_word(&argc, &argv);
    ref_tables_(moek_format_of(1), MOEK_DTYPE_BF16);
    for (i = 0; i < SOURCES; i++) {
        for (n = 0; n < FORMATS; n++)
            if (fits(i, format_at(n))) test_source(i, format_at(n), quick_set ? 12 : 48);
#ifndef MOEK_EMU
        test_large(i);
#endif
        test_in_place(i, 0);
        if (mem_can_run(80)) test_in_place(i, 80);
    }
    for (n = 0; n < FORMATS; n++)
        if (format_scaled(format_at(n))) test_plain(format_at(n), quick_set ? 24 : 96);
    test_plain_layers();
    test_layers();
    for (i = 0; i < SOURCES; i++) {
        test_shapes(i);
        test_reports(i);
    }
    test_scales_of_tensors();
    test_wrong_source();
    test_refusals();
    test_places();
    test_orders();
    test_verdicts();
    test_golden(argc > 1 ? argv[1] : "tests/data", "import_golden.tsv", 10, test_golden_line);
    test_golden(argc > 1 ? argv[1] : "tests/data", "gguf_import_golden.tsv", 2, test_golden_line);
    test_golden(argc > 1 ? argv[1] : "tests/data", "quantize_golden.tsv", 10, test_quantized_line);
    test_golden(argc > 1 ? argv[1] : "tests/data", "gguf_quantize_golden.tsv", 5, test_blocks_line);
    test_quantized_blocks();
    return check_end();
}
