/* Numbers of a cache: floats are rounded into cells, and cells are read as vectors of floats. */

enum { CODE_BLOCK = 32, CODE_BLOCK_BYTES = 34 }; /* q8_0: a half d, then 32 signed bytes */

/* ---- into a cell -------------------------------------------------------------------------- */

static const float LARGEST_HALF = 65504.0f;

/* To the nearest half, ties to even, as IEEE 754 rounds; `x` is finite and no larger than a half. */
ALWAYS uint32_t float_to_half(float x)
{
    uint32_t sign = bits_of(x) >> 31 << 15, rest = bits_of(x) & 0x7fffffff;
    uint32_t normal = (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
    uint32_t small = bits_of(float_of(rest) + 0.5f) - 0x3f000000; /* the sum rounds to 2^-24 */
    return sign | (rest < 113u << 23 ? small : normal);
}

ALWAYS float not_above(float x, float most)
{
    x = x > most ? most : x;
    return x < -most ? -most : x;
}

static void store_f16(const float *RESTRICT x, ptrdiff_t count, uint8_t *RESTRICT to)
{
    for (ptrdiff_t i = 0; i < count; i++) {
        uint16_t half = (uint16_t)float_to_half(not_above(x[i], LARGEST_HALF));
        memcpy(to + 2 * i, &half, 2);
    }
}

/* As ggml-quants.c's quantize_row_q8_0_ref @ b21e4de: codes are made with d as a float, before it
   becomes a half. A d that has no reciprocal is 0 as a half, and so are its codes. */
static void store_q8_0(const float *RESTRICT x, ptrdiff_t count, uint8_t *RESTRICT to)
{
    for (ptrdiff_t b = 0; b < count / CODE_BLOCK; b++) {
        const float *from = x + b * CODE_BLOCK;
        uint8_t *block = to + b * CODE_BLOCK_BYTES;
        float most = 0;
        for (int i = 0; i < CODE_BLOCK; i++)
            most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
        float d = not_above(most / 127.0f, LARGEST_HALF);
        float inverse = d < 3e-39f ? 0 : 1.0f / d;
        uint16_t half = (uint16_t)float_to_half(d);
        memcpy(block, &half, 2);
        for (int i = 0; i < CODE_BLOCK; i++)
            block[2 + i] = (uint8_t)(int8_t)not_above(roundf(from[i] * inverse), 127.0f);
    }
}

/* Every row of x into a row of cells. -1, or the first block that has a number that is not finite;
   the rows before it are written. */
static ptrdiff_t store_cells(enum cache_kind kind, struct matrix x, uint8_t *into)
{
    ptrdiff_t row_bytes = cache_bytes(kind, x.columns);
    ptrdiff_t per_block = kind == CACHE_Q8_0 ? CODE_BLOCK : 1;
    for (ptrdiff_t row = 0; row < x.rows; row++) {
        const float *from = x.data + row * x.stride;
        uint8_t *to = into + row * row_bytes;
        ptrdiff_t bad = first_not_finite(from, x.columns);
        if (bad >= 0)
            return (row * x.columns + bad) / per_block;
        if (kind == CACHE_F32)
            memcpy(to, from, (size_t)row_bytes);
        else if (kind == CACHE_F16)
            store_f16(from, x.columns, to);
        else
            store_q8_0(from, x.columns, to);
    }
    return -1;
}

/* ---- out of a cell ------------------------------------------------------------------------ */

#if defined(ONE_HALF)
ALWAYS float scale_of(const uint8_t *from) { return ONE_HALF(u16_at(from)); }
#else
ALWAYS float scale_of(const uint8_t *from)
{
    float value;
    f16(from, &value, 1);
    return value;
}
#endif

/* Numbers that are read together, because they share a scale. */
ALWAYS int step_of(const enum cache_kind kind) { return kind == CACHE_Q8_0 ? CODE_BLOCK : LANES; }

/* Where the step with number `i` begins, a multiple of a step. */
ALWAYS const uint8_t *step_at(const uint8_t *cell, ptrdiff_t i, const enum cache_kind kind)
{
    if (kind == CACHE_Q8_0)
        return cell + (size_t)i / CODE_BLOCK * CODE_BLOCK_BYTES;
    return cell + i * (kind == CACHE_F16 ? 2 : 4);
}

ALWAYS float step_scale(const uint8_t *step, const enum cache_kind kind)
{
    return kind == CACHE_Q8_0 ? scale_of(step) : 1;
}

/* Vector `part` of a step. */
ALWAYS vec step_vector(const uint8_t *step, int part, float scale, const enum cache_kind kind)
{
    vec value;
    if (kind == CACHE_F16)
        return halves(step);
    if (kind == CACHE_Q8_0)
        return splat(scale) * codes(step + 2 + part * LANES);
    memcpy(&value, step, sizeof value);
    return value;
}

/* The last `count` numbers of a cell, fewer than LANES, and zeros. Blocks are whole vectors. */
ALWAYS vec cell_rest(const uint8_t *cell, ptrdiff_t i, ptrdiff_t count, const enum cache_kind kind)
{
    uint8_t rest[LANES * 4] = {0};
    memcpy(rest, step_at(cell, i, kind), (size_t)(count * (kind == CACHE_F16 ? 2 : 4)));
    return step_vector(rest, 0, 1, kind);
}
