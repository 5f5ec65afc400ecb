/* Panels: some rows of W are turned, so that vectors run along rows and nothing has to be summed
   across lanes. Best for many tokens, and for attention. */

enum {
    PANEL = 2 * LANES, /* rows of a panel: two vectors */
    PANEL_DEPTH = 512, /* columns of W that are unpacked at a time: whole blocks of every type */
};

#if LANES > 1
enum { STAGES = LANES == 4 ? 2 : LANES == 8 ? 3 : 4 }; /* log2 LANES */

#if LANES == 4
#define LANE_NUMBERS 0, 1, 2, 3
#elif LANES == 8
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#else
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#endif

/* Lanes whose number has the bit `step` trade places between rows a and b. */
ALWAYS void trade(vec *a, vec *b, const int step)
{
#if defined(__clang__)
    float x[LANES], y[LANES], first[LANES], second[LANES];
    store(x, *a), store(y, *b);
    for (int i = 0; i < LANES; i++) {
        first[i] = i & step ? y[i - step] : x[i];
        second[i] = i & step ? y[i] : x[i + step];
    }
    *a = load(first), *b = load(second);
#else /* GCC would read such arrays float by float. Places from LANES on are b's. */
    typedef int32_t places __attribute__((vector_size(LANES * 4)));
    const places lane = {LANE_NUMBERS};
    const places first = lane + (((lane & step) != 0) & (LANES - step)), second = first + step;
    vec x = *a, y = *b;
    *a = __builtin_shuffle(x, y, first), *b = __builtin_shuffle(x, y, second);
#endif
}

/* LANES rows, `apart` floats apart, become LANES columns of the panel. */
ALWAYS void turn(const float *from, ptrdiff_t apart, float *to)
{
    vec rows[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++)
        rows[i] = load(from + i * apart);
    UNROLL
    for (int stage = 0; stage < STAGES; stage++)
        UNROLL
        for (int i = 0; i < LANES; i++)
            if (!(i & 1 << stage))
                trade(&rows[i], &rows[i + (1 << stage)], 1 << stage);
    UNROLL
    for (int i = 0; i < LANES; i++)
        store(to + i * PANEL, rows[i]);
}
#endif

/* Up to LANES rows into one half of a panel; what is missing is zero. */
static void turn_rows(const float *from, ptrdiff_t apart, ptrdiff_t rows, ptrdiff_t depth, float *to)
{
    ptrdiff_t i = 0;
#if LANES > 1
    if (rows == LANES)
        for (; i + LANES <= depth; i += LANES)
            turn(from + i, apart, to + i * PANEL);
#endif
    for (; i < depth; i++)
        for (int r = 0; r < LANES; r++)
            to[i * PANEL + r] = r < rows ? from[r * apart + i] : 0;
}

/* What a tile of a panel needs to know. */
struct panel {
    const float *data;
    ptrdiff_t stride; /* floats from one column of W to the next */
    ptrdiff_t depth;  /* columns of W */
    ptrdiff_t rows;   /* of W, at most PANEL; only so many columns of out are written */
};

/* out += x * panel for `tokens` tokens, a constant where this is called. */
ALWAYS void panel_tile(const struct panel *p, const float *x, ptrdiff_t x_stride, float *out,
                       ptrdiff_t out_stride, const int tokens)
{
    vec sums[PANEL_TOKENS][2];
    UNROLL
    for (int t = 0; t < tokens; t++)
        sums[t][0] = sums[t][1] = splat(0);
    const float *at = p->data;
    for (ptrdiff_t i = 0; i < p->depth; i++, at += p->stride) {
        vec first = load(at), second = load(at + LANES);
        UNROLL
        for (int t = 0; t < tokens; t++) {
            vec value = splat(x[t * x_stride + i]);
            sums[t][0] += value * first;
            sums[t][1] += value * second;
        }
    }
    if (p->rows == PANEL) {
        UNROLL
        for (int t = 0; t < tokens; t++) {
            float *to = out + t * out_stride;
            store(to, load(to) + sums[t][0]);
            store(to + LANES, load(to + LANES) + sums[t][1]);
        }
        return;
    }
    for (int t = 0; t < tokens; t++) {
        float part[PANEL];
        store(part, sums[t][0]);
        store(part + LANES, sums[t][1]);
        for (ptrdiff_t r = 0; r < p->rows; r++)
            out[t * out_stride + r] += part[r];
    }
}

static void panel_tokens(const struct panel *p, struct matrix x, float *out, ptrdiff_t out_stride)
{
    ptrdiff_t t = 0;
    for (; t + PANEL_TOKENS <= x.rows; t += PANEL_TOKENS)
        panel_tile(p, x.data + t * x.stride, x.stride, out + t * out_stride, out_stride,
                   PANEL_TOKENS);
    for (; t + 4 <= x.rows; t += 4)
        panel_tile(p, x.data + t * x.stride, x.stride, out + t * out_stride, out_stride, 4);
    for (; t < x.rows; t++)
        panel_tile(p, x.data + t * x.stride, x.stride, out + t * out_stride, out_stride, 1);
}
