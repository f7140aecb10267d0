/* moek/format_facts.h -- a line of MOEK_EACH_FORMAT as a moek_format: for the plan, and for kernels of the CPU, which
 * are objects of their own. */
#ifndef MOEK_FORMAT_FACTS_H
#define MOEK_FORMAT_FACTS_H
#include "format.h"
#define MOEK_FORMAT_FACTS_(NAME, name, number, w_about, x_about, w, x, w_bits, x_bits, w_type, w_rows, w_columns, \
                           x_type, x_rows, x_columns, fixed, ue8m0, global_scale, zero, granule, blocks, \
                           b0, b1, b2, b3, expands, tiled, file_type, file_bytes, file_columns, only_blocks) \
    { #name, w_about, x_about, number, MOEK_ELEMENT_##w, MOEK_ELEMENT_##x, w_bits, x_bits, \
      { MOEK_SCALE_TYPE_##w_type, w_rows, w_columns }, { MOEK_SCALE_TYPE_##x_type, x_rows, x_columns }, fixed, \
      ue8m0, global_scale, zero, granule, blocks, { b0, b1, b2, b3 }, expands, tiled, file_type, file_bytes, \
      file_columns, only_blocks },
#endif
