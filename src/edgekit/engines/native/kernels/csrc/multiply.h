/* out = x @ W.T, W unpacked a piece at a time into scratch, never as a whole. */

enum {
    MANY_TOKENS = 20, /* from here on, turning a panel pays */
    PANEL_FLOATS = PANEL_DEPTH * (PANEL + LANES),
    DOT_FLOATS = DOT_DEPTH * DOT_ROWS,
    SCRATCH_FLOATS = PANEL_FLOATS > DOT_FLOATS ? PANEL_FLOATS : DOT_FLOATS,
};

static ptrdiff_t scratch_floats(ptrdiff_t columns)
{
    ptrdiff_t most = SCRATCH_FLOATS;
#if defined(DIGITS)
    most = digits_floats(columns) > most ? digits_floats(columns) : most;
#endif
#if defined(PAIRS)
    most = TOKENS_FLOATS > most ? TOKENS_FLOATS : most;
#endif
    (void)columns;
    return most;
}

/* A piece of W: `rows` rows from `row` on, `depth` columns from `column` on. */
struct piece {
    const struct type *type;
    const uint8_t *weights;
    const struct codebooks *books;
    ptrdiff_t row_blocks; /* in a whole row of W */
    ptrdiff_t row, rows, column, depth;
};

/* Row by row, `apart` floats apart. -1, or the bad block, counted from the start of W. */
static ptrdiff_t unpack_piece(const struct piece *p, float *to, ptrdiff_t apart)
{
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        ptrdiff_t block = (p->row + i) * p->row_blocks + p->column / p->type->block_weights;
        ptrdiff_t bad = p->type->unpack(p->weights + block * p->type->block_bytes,
                                        p->depth / p->type->block_weights, to + i * apart, p->books);
        if (bad >= 0)
            return block + bad;
    }
    return -1;
}

static ptrdiff_t multiply_few(struct piece p, struct matrix x, struct matrix out, float *scratch)
{
    for (p.row = 0; p.row < out.columns; p.row += p.rows) {
        p.rows = least(out.columns - p.row, DOT_ROWS);
        for (p.column = 0; p.column < x.columns; p.column += p.depth) {
            p.depth = least(x.columns - p.column, DOT_DEPTH);
            ptrdiff_t bad = unpack_piece(&p, scratch, DOT_DEPTH);
            if (bad >= 0)
                return bad;
            struct matrix part = x;
            part.data += p.column;
            float *to = out.data + p.row;
            if (p.rows == DOT_ROWS) {
                dot_rows(scratch, part, p.depth, to, out.stride, DOT_ROWS);
                continue;
            }
            ptrdiff_t r = 0;
            for (; r + 2 <= p.rows; r += 2)
                dot_rows(scratch + r * DOT_DEPTH, part, p.depth, to + r, out.stride, 2);
            if (r < p.rows)
                dot_rows(scratch + r * DOT_DEPTH, part, p.depth, to + r, out.stride, 1);
        }
    }
    return -1;
}

static ptrdiff_t multiply_many(struct piece p, struct matrix x, struct matrix out, float *scratch)
{
    float *panel = scratch, *as_they_lie = scratch + PANEL_DEPTH * PANEL;
    for (ptrdiff_t first = 0; first < out.columns; first += PANEL) {
        ptrdiff_t count = least(out.columns - first, PANEL);
        for (p.column = 0; p.column < x.columns; p.column += p.depth) {
            p.depth = least(x.columns - p.column, PANEL_DEPTH);
            for (int half = 0; half < 2; half++) {
                p.row = first + half * LANES;
                p.rows = count > half * LANES ? least(count - half * LANES, LANES) : 0;
                ptrdiff_t bad = unpack_piece(&p, as_they_lie, PANEL_DEPTH);
                if (bad >= 0)
                    return bad;
                turn_rows(as_they_lie, PANEL_DEPTH, p.rows, p.depth, panel + half * LANES);
            }
            struct panel turned = {panel, PANEL, p.depth, count};
            struct matrix part = x;
            part.data += p.column;
            panel_tokens(&turned, part, out.data + first, out.stride);
        }
    }
    return -1;
}

/* One token: a row is not worth unpacking for a single use. */
static ptrdiff_t multiply_one(const struct type *type, const uint8_t *weights, struct matrix x,
                              struct matrix out, float *scratch, const struct codebooks *books)
{
    ptrdiff_t row_blocks = x.columns / type->block_weights;
    struct factors factors = {.x = x.data};
#if defined(DIGITS)
    if (type->block_weights > 1)
        factors = split(x.data, x.columns, scratch);
#else
    (void)scratch;
#endif
    for (ptrdiff_t row = 0; row < out.columns; row++) {
        ptrdiff_t block = row * row_blocks;
        ptrdiff_t bad = type->dot(weights + block * type->block_bytes, row_blocks, &factors,
                                  books, out.data + row);
        if (bad >= 0)
            return block + bad;
    }
    return -1;
}

static ptrdiff_t multiply(const struct type *type, const uint8_t *weights, struct matrix x,
                          struct matrix out, float *scratch, const struct codebooks *books)
{
    for (ptrdiff_t t = 0; t < out.rows; t++)
        memset(out.data + t * out.stride, 0, (size_t)out.columns * sizeof(float));
    if (x.rows == 1 && type->dot)
        return multiply_one(type, weights, x, out, scratch, books);
#if defined(PAIRS)
    if (type->read)
        return multiply_pairs(type, weights, x, out, scratch, books);
#endif
    struct piece whole = {
        .type = type, .weights = weights, .books = books, .row_blocks = x.columns / type->block_weights};
    return x.rows < MANY_TOKENS ? multiply_few(whole, x, out, scratch)
                                : multiply_many(whole, x, out, scratch);
}
