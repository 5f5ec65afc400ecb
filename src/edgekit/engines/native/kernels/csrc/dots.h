/* Dot products: rows of W as they lie, vectors along K. Best for few tokens. */

enum {
    DOT_DEPTH = 1024, /* columns of W that are unpacked at a time: whole blocks of every type */
    DOT_ROWS = LANES == 16 ? 6 : LANES == 8 ? 3 : 4, /* rows: as many sums as there are registers */
    DOT_TOKENS = 4,
};

/* `rows` x `tokens` dot products over `depth`, added to out; both numbers are constants where this
   is called, so that the sums stay in registers. */
ALWAYS void dot_tile(const float *w, const float *x, ptrdiff_t x_stride, ptrdiff_t depth, float *out,
                     ptrdiff_t out_stride, const int rows, const int tokens)
{
    vec sums[DOT_ROWS][DOT_TOKENS];
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++)
            sums[r][t] = splat(0);
    ptrdiff_t i = 0;
    for (; i + LANES <= depth; i += LANES) {
        vec values[DOT_TOKENS];
        UNROLL
        for (int t = 0; t < tokens; t++)
            values[t] = load(x + t * x_stride + i);
        UNROLL
        for (int r = 0; r < rows; r++) {
            vec weight = load(w + r * DOT_DEPTH + i);
            UNROLL
            for (int t = 0; t < tokens; t++)
                sums[r][t] += weight * values[t];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int t = 0; t < tokens; t++) {
            float sum = total(sums[r][t]);
            for (ptrdiff_t rest = i; rest < depth; rest++)
                sum += w[r * DOT_DEPTH + rest] * x[t * x_stride + rest];
            out[t * out_stride + r] += sum;
        }
}

/* A few rows for all tokens. */
ALWAYS void dot_rows(const float *w, struct matrix x, ptrdiff_t depth, float *out,
                     ptrdiff_t out_stride, const int rows)
{
    ptrdiff_t t = 0;
    for (; t + DOT_TOKENS <= x.rows; t += DOT_TOKENS)
        dot_tile(w, x.data + t * x.stride, x.stride, depth, out + t * out_stride, out_stride, rows,
                 DOT_TOKENS);
    for (; t < x.rows; t++)
        dot_tile(w, x.data + t * x.stride, x.stride, depth, out + t * out_stride, out_stride, rows, 1);
}
