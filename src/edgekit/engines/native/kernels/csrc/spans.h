/* Attention over a span of cells, some queries and some cells at a time. The softmax is kept open:
   a query's largest score and its sum of shares stand in `state`, and what it has gathered in `out`
   is divided by the sum when all spans are done.

   Queries of all heads that share a key head read a cell together, so that it is read once. */

enum {
    TILE_ROWS = 8,                  /* queries that read a cell together */
    TILE_SUMS = LANES > 8 ? 16 : 8, /* sums that find room in registers */
    BLOCK_CELLS = 64,               /* whose scores are held at a time: whole vectors */
    MIX_CELLS = 8,                  /* whose values are gathered at a time */
    CACHE_LINE = 64,                /* bytes that memory gives at a time */
};

/* Numbers of one key head in consecutive cells. */
struct cells {
    const uint8_t *data;
    ptrdiff_t bytes, stride, count;
    ptrdiff_t head_dim;
    const struct cells *next; /* read after these, or NULL */
};

/* Ask memory for some of the cells that are read next: those of one head lie apart, and processors
   do not foresee that. */
ALWAYS void ask_ahead(const struct cells *now, ptrdiff_t first, ptrdiff_t count)
{
    if (!now->next)
        return;
    for (ptrdiff_t c = first; c < least(first + count, now->next->count); c++)
        for (ptrdiff_t i = 0; i < now->next->bytes; i += CACHE_LINE)
            PREFETCH(now->next->data + c * now->next->stride + i);
}

/* Up to TILE_ROWS queries that see the same cells. */
struct tile {
    int rows;
    const float *q[TILE_ROWS];
    float *out[TILE_ROWS], *state[TILE_ROWS];
};

ALWAYS ptrdiff_t whole_vectors(ptrdiff_t count) { return (count + LANES - 1) / LANES * LANES; }

/* Queries of a tile, what they gather, and their scores. */
static ptrdiff_t span_floats(ptrdiff_t head_dim)
{
    return TILE_ROWS * (2 * whole_vectors(head_dim) + BLOCK_CELLS);
}

/* ---- packed rows: vector 0 of all rows, vector 1 of all rows, ...; numbers that are missing at
   the end are zero, and so are rows --------------------------------------------------------- */

static void pack_row(const float *from, ptrdiff_t count, float factor, int row, int rows, float *to)
{
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to + i * rows + row * LANES, load(from + i) * splat(factor));
    if (i == count)
        return;
    float *rest = to + i * rows + row * LANES;
    for (int lane = 0; lane < LANES; lane++)
        rest[lane] = i + lane < count ? from[i + lane] * factor : 0;
}

static void unpack_row(const float *from, ptrdiff_t count, int row, int rows, float *to)
{
    ptrdiff_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to + i, load(from + i * rows + row * LANES));
    for (int lane = 0; i + lane < count; lane++)
        to[i + lane] = from[i * rows + row * LANES + lane];
}

/* ---- scores ------------------------------------------------------------------------------- */

/* The sums of LANES vectors' lanes, as one vector. */
ALWAYS vec totals(const vec *of)
{
    vec sums[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++)
        sums[i] = of[i];
#if LANES > 1
    UNROLL
    for (int step = 1; step < LANES; step *= 2)
        UNROLL
        for (int i = 0; i < LANES; i += 2 * step) {
            trade(&sums[i], &sums[i + step], step);
            sums[i] += sums[i + step];
        }
#endif
    return sums[0];
}

/* Dot products of `rows` packed queries with `together` cells, not yet summed across lanes; those
   of a row lie LANES apart. */
ALWAYS void dot_cells(const struct cells *k, ptrdiff_t first, const float *q, vec *sums,
                      const int rows, const int together, const enum cache_kind kind)
{
    vec own[TILE_SUMS];
    const uint8_t *at[TILE_SUMS];
    UNROLL
    for (int i = 0; i < rows * together; i++)
        own[i] = splat(0);
    UNROLL
    for (int c = 0; c < together; c++) /* what is beyond the end is counted, but not used */
        at[c] = k->data + least(first + c, k->count - 1) * k->stride;
    ptrdiff_t i = 0;
    for (; i + step_of(kind) <= k->head_dim; i += step_of(kind))
        UNROLL
        for (int c = 0; c < together; c++) {
            const uint8_t *step = step_at(at[c], i, kind);
            float scale = step_scale(step, kind);
            UNROLL
            for (int part = 0; part < step_of(kind) / LANES; part++) {
                vec key = step_vector(step, part, scale, kind);
                UNROLL
                for (int r = 0; r < rows; r++)
                    own[c * rows + r] += key * load(q + (i + part * LANES) * rows + r * LANES);
            }
        }
    if (i < k->head_dim)
        UNROLL
        for (int c = 0; c < together; c++) {
            vec key = cell_rest(at[c], i, k->head_dim - i, kind);
            UNROLL
            for (int r = 0; r < rows; r++)
                own[c * rows + r] += key * load(q + i * rows + r * LANES);
        }
    UNROLL
    for (int c = 0; c < together; c++)
        UNROLL
        for (int r = 0; r < rows; r++)
            sums[r * LANES + c] = own[c * rows + r];
}

ALWAYS void score_cells(const struct cells *k, const float *q, float *scores, const int rows,
                        const enum cache_kind kind)
{
    const int together = TILE_SUMS / rows < LANES ? TILE_SUMS / rows : LANES;
    for (ptrdiff_t first = 0; first < k->count; first += LANES) {
        vec sums[TILE_ROWS * LANES];
        for (int c = 0; c < LANES; c += together) {
            ask_ahead(k, first + c, together);
            dot_cells(k, first + c, q, sums + c, rows, together, kind);
        }
        for (int r = 0; r < rows; r++)
            store(scores + r * BLOCK_CELLS + first, totals(sums + r * LANES));
    }
}

/* Scores become shares of the largest so far; how much what was gathered before has to shrink. */
static float share(float *scores, ptrdiff_t count, float scale, float *state)
{
    for (ptrdiff_t i = 0; i < count; i++)
        scores[i] *= scale;
    float most = most_of(scores, count);
    most = state[0] > most ? state[0] : most;
    for (ptrdiff_t i = 0; i < count; i++)
        scores[i] = exponential(scores[i] - most);
    float shrink = state[0] == -INFINITY ? 0 : exponential(state[0] - most);
    state[0] = most;
    state[1] = state[1] * shrink + sum_of(scores, count);
    return shrink;
}

/* ---- values ------------------------------------------------------------------------------- */

/* One step of some cells' values, times their shares, for all rows. */
ALWAYS void mix_step(const uint8_t *at, ptrdiff_t stride, ptrdiff_t count, const float *shares,
                     float *to, const int rows, const enum cache_kind kind)
{
    float scales[MIX_CELLS];
    for (ptrdiff_t c = 0; c < count; c++)
        scales[c] = step_scale(at + c * stride, kind);
    for (int part = 0; part < step_of(kind) / LANES; part++, to += rows * LANES) {
        vec own[TILE_ROWS];
        UNROLL
        for (int r = 0; r < rows; r++)
            own[r] = load(to + r * LANES);
        for (ptrdiff_t c = 0; c < count; c++) {
            vec value = step_vector(at + c * stride, part, scales[c], kind);
            UNROLL
            for (int r = 0; r < rows; r++)
                own[r] += splat(shares[r * BLOCK_CELLS + c]) * value;
        }
        UNROLL
        for (int r = 0; r < rows; r++)
            store(to + r * LANES, own[r]);
    }
}

/* What does not fill a vector, cell by cell. */
ALWAYS void mix_rest(const uint8_t *at, ptrdiff_t i, ptrdiff_t count, const float *shares, float *to,
                     const int rows, const enum cache_kind kind)
{
    vec value = cell_rest(at, i, count, kind);
    for (int r = 0; r < rows; r++)
        store(to + r * LANES, load(to + r * LANES) + splat(shares[r * BLOCK_CELLS]) * value);
}

ALWAYS void mix_cells(const struct cells *v, const float *shares, float *out, const int rows,
                      const enum cache_kind kind)
{
    for (ptrdiff_t first = 0; first < v->count; first += MIX_CELLS) {
        const uint8_t *at = v->data + first * v->stride;
        ptrdiff_t count = least(v->count - first, MIX_CELLS), i = 0;
        ask_ahead(v, first, count);
        for (; i + step_of(kind) <= v->head_dim; i += step_of(kind))
            mix_step(step_at(at, i, kind), v->stride, count, shares + first, out + i * rows, rows,
                     kind);
        for (ptrdiff_t c = 0; c < count && i < v->head_dim; c++)
            mix_rest(at + c * v->stride, i, v->head_dim - i, shares + first + c, out + i * rows,
                     rows, kind);
    }
}

/* ---- one function for each kind and number of rows ----------------------------------------- */

#define FOR_ROWS(name, kind, rows)                                                                 \
    static void score_##name##_##rows(const struct cells *k, const float *q, float *scores)        \
    {                                                                                              \
        score_cells(k, q, scores, rows, kind);                                                     \
    }                                                                                              \
    static void mix_##name##_##rows(const struct cells *v, const float *shares, float *out)        \
    {                                                                                              \
        mix_cells(v, shares, out, rows, kind);                                                     \
    }
#define FOR_KIND(name, kind)                                                                       \
    FOR_ROWS(name, kind, 1) FOR_ROWS(name, kind, 2) FOR_ROWS(name, kind, 4) FOR_ROWS(name, kind, 8)
FOR_KIND(f32, CACHE_F32)
FOR_KIND(f16, CACHE_F16)
FOR_KIND(q8_0, CACHE_Q8_0)

typedef void cells_function(const struct cells *cells, const float *from, float *to);

#define ROW_COUNTS(name) {name##_1, name##_2, name##_4, name##_8}
static cells_function *const SCORE[CACHE_KINDS][4] = {
    ROW_COUNTS(score_f32), ROW_COUNTS(score_f16), ROW_COUNTS(score_q8_0)};
static cells_function *const MIX[CACHE_KINDS][4] = {
    ROW_COUNTS(mix_f32), ROW_COUNTS(mix_f16), ROW_COUNTS(mix_q8_0)};

/* ---- a span ------------------------------------------------------------------------------- */

static void attend_tile(const struct span *s, const struct tile *tile, const struct cells *k,
                        const struct cells *v)
{
    int size = tile->rows > 4 ? 3 : tile->rows > 2 ? 2 : tile->rows > 1, rows = 1 << size;
    ptrdiff_t packed = rows * whole_vectors(s->head_dim);
    float *q = s->scratch, *out = q + packed, *scores = out + packed;
    if (tile->rows < rows)
        memset(q, 0, (size_t)(2 * packed) * sizeof(float));
    for (int r = 0; r < tile->rows; r++)
        pack_row(tile->q[r], s->head_dim, 1, r, rows, q);
    SCORE[s->k_kind][size](k, q, scores);
    for (int r = 0; r < tile->rows; r++) {
        float shrink = share(scores + r * BLOCK_CELLS, k->count, s->scale, tile->state[r]);
        pack_row(tile->out[r], s->head_dim, shrink, r, rows, out);
    }
    MIX[s->v_kind][size](v, scores, out);
    for (int r = 0; r < tile->rows; r++)
        unpack_row(out, s->head_dim, r, rows, tile->out[r]);
}

/* Queries first..last of all heads that share key head `head`; they see the same cells. */
static void attend_rows(const struct span *s, ptrdiff_t head, ptrdiff_t first, ptrdiff_t last,
                        struct cells k, struct cells v)
{
    ptrdiff_t group = s->heads / s->kv_heads, count = (last - first) * group;
    for (ptrdiff_t done = 0; done < count; done += TILE_ROWS) {
        struct tile tile = {.rows = (int)least(count - done, TILE_ROWS)};
        for (int r = 0; r < tile.rows; r++) {
            ptrdiff_t row = first + (done + r) / group, own = head * group + (done + r) % group;
            tile.q[r] = s->q.data + row * s->q.stride + own * s->head_dim;
            tile.out[r] = s->out.data + row * s->out.stride + own * s->head_dim;
            tile.state[r] = s->state + (row * s->heads + own) * 2;
        }
        attend_tile(s, &tile, &k, &v);
        k.next = v.next = NULL; /* once is enough */
    }
}

/* Cells first..last of a span. */
struct range {
    ptrdiff_t first, last;
};

ALWAYS ptrdiff_t inside(struct range range, ptrdiff_t value)
{
    return value < range.first ? range.first : least(value, range.last);
}

/* Which of some cells query t sees. */
ALWAYS struct range seen_by(const struct span *s, ptrdiff_t t, struct range range)
{
    ptrdiff_t after = s->ahead + t + 1;
    return (struct range){inside(range, after - s->reach), inside(range, after)};
}

static struct cells cells_of(const struct span *s, const uint8_t *data, enum cache_kind kind,
                             ptrdiff_t head, struct range range)
{
    ptrdiff_t bytes = cache_bytes(kind, s->head_dim), stride = bytes * s->kv_heads;
    return (struct cells){
        .data = data + range.first * stride + head * bytes,
        .bytes = bytes,
        .stride = stride,
        .count = range.last - range.first,
        .head_dim = s->head_dim,
    };
}

/* At most BLOCK_CELLS cells: queries that see the same of them go together. `next` are the keys
   that come after. */
static void attend_block(const struct span *s, ptrdiff_t head, struct range block,
                         const struct cells *next)
{
    for (ptrdiff_t t = 0, end; t < s->q.rows; t = end) {
        struct range seen = seen_by(s, t, block);
        for (end = t + 1; end < s->q.rows; end++) {
            struct range other = seen_by(s, end, block);
            if (other.first != seen.first || other.last != seen.last)
                break;
        }
        if (seen.first >= seen.last)
            continue;
        struct cells k = cells_of(s, s->k, s->k_kind, head, seen);
        struct cells v = cells_of(s, s->v, s->v_kind, head, seen);
        k.next = &v, v.next = next;
        attend_rows(s, head, t, end, k, v);
        next = NULL;
    }
}

/* Key heads first..last, block by block: what lies together is read together. */
static void attend_span(const struct span *s, ptrdiff_t first, ptrdiff_t last)
{
    for (struct range block = {0, 0}; block.last < s->cells; block.first = block.last) {
        block.last = least(block.first + BLOCK_CELLS, s->cells);
        struct range beyond = {block.last, least(block.last + BLOCK_CELLS, s->cells)};
        for (ptrdiff_t head = first; head < last; head++) {
            bool more = head + 1 < last;
            struct cells next =
                cells_of(s, s->k, s->k_kind, more ? head + 1 : first, more ? block : beyond);
            attend_block(s, head, block, &next);
        }
    }
}

/* out / sum, or 0 where there is none. */
static void settle(struct matrix out, const float *state, ptrdiff_t heads, ptrdiff_t head_dim)
{
    for (ptrdiff_t row = 0; row < out.rows; row++)
        for (ptrdiff_t head = 0; head < heads; head++) {
            float *own = out.data + row * out.stride + head * head_dim;
            float sum = state[(row * heads + head) * 2 + 1];
            for (ptrdiff_t i = 0; i < head_dim; i++)
                own[i] = sum == 0 ? 0 : own[i] / sum;
        }
}
