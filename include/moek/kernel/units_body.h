/* moek/kernel/units_body.h -- blocks of GGUF files in panels (units.h) for a set of instructions: included by each,
 * with MOEK_V_(x), the name of x for the set, MOEK_V_INLINE, and
 *   MOEK_V_SIXTEEN, MOEK_V_BYTES     f32 of 16 rows, and a byte of each
 *   MOEK_V_(tops, times, put)        f16 to f32; times numbers with a sign; to memory, with this or the other sign
 *   MOEK_V_(number, or, less)        bits of bytes; bits of two planes as one number; minus a constant
 *   MOEK_V_(words)                   a part, to words */

/* Scale or minimum n of 16 rows. */
MOEK_V_INLINE void MOEK_V_(factor)(float *to, MOEK_V_SIXTEEN top, const uint8_t *heads, const moek_unit_numbers_ *of,
                                   const int n)
{
    const moek_plane *const p = of->plane, *const more = p + 1;
    MOEK_V_BYTES all = MOEK_V_(number)(heads + 16 * moek_plane_byte_(p, n), moek_plane_bit_(p, n), p->bits, 0);
    if (more->bits)
        all = MOEK_V_(or)(all, MOEK_V_(number)(heads + 16 * moek_plane_byte_(more, n), moek_plane_bit_(more, n),
                                               more->bits, p->bits));
    if (of->less) all = MOEK_V_(less)(all, of->less);
    MOEK_V_(put)(to, MOEK_V_(times)(top, all), of->minus);
}
/* The scales or minimums of part p.  `to` begins with part `begin`. */
MOEK_V_INLINE void MOEK_V_(factors_of_part)(float *to, MOEK_V_SIXTEEN top, const uint8_t *heads,
                                            const moek_unit_numbers_ *of, const int p, const int begin)
{
    const int each = MOEK_PART / of->columns;
    float *const at = to + 16 * each * (p - begin);
    MOEK_V_(factor)(at, top, heads, of, each * p);
    if (each > 1) MOEK_V_(factor)(at + 16, top, heads, of, each * p + 1);
}
MOEK_V_INLINE void MOEK_V_(factors)(float *scale, float *min, const uint8_t *unit, int first, int parts,
                                    const moek_unit_layout_ *l)
{
    if (!l->whole) {                                   /* blocks of 32 columns */
        const uint8_t *heads = unit + l->heads * first;
        int part;
        for (part = 0; part < parts; part++, heads += l->heads) {
            MOEK_V_(put)(scale + 16 * part, MOEK_V_(tops)(heads + l->scale.top), l->scale.minus);
            if (l->min.columns) MOEK_V_(put)(min + 16 * part, MOEK_V_(tops)(heads + l->min.top), l->min.minus);
        }
    }
    else {
        const MOEK_V_SIXTEEN top = MOEK_V_(tops)(unit + l->scale.top);
        const MOEK_V_SIXTEEN low = l->min.columns ? MOEK_V_(tops)(unit + l->min.top) : top;
#define MOEK_PART_(p, begin) do { \
            MOEK_V_(factors_of_part)(scale, top, unit, &l->scale, p, begin); \
            if (l->min.columns) MOEK_V_(factors_of_part)(min, low, unit, &l->min, p, begin); \
        } while (0)
        if (!first) {
            MOEK_PART_(0, 0); MOEK_PART_(1, 0); MOEK_PART_(2, 0); MOEK_PART_(3, 0);
            scale += 16 * 128 / l->scale.columns;
            if (l->min.columns) min += 16 * 128 / l->min.columns;
        }
        if (first + parts > 4) {
            MOEK_PART_(4, 4); MOEK_PART_(5, 4); MOEK_PART_(6, 4); MOEK_PART_(7, 4);
        }
#undef MOEK_PART_
    }
}
MOEK_V_INLINE void MOEK_V_(parts)(uint32_t *words, float *scale, float *min, const uint8_t *unit, int all, int first,
                                  int parts, int raw, const moek_unit_layout_ *l, moek_unit_factors_ *factors)
{
    const uint8_t *const from = moek_unit_begin_(l, unit, all);
    int part;
    factors(scale, min, unit, all, first, parts);
    for (part = first; part < first + parts; part++, words += MOEK_PART_WORDS)
        MOEK_V_(words)(words, from, l, part, raw);
}

/* What a set has given is spent. */
#undef MOEK_V_SIXTEEN
#undef MOEK_V_BYTES
#undef MOEK_V_
#undef MOEK_V_INLINE
