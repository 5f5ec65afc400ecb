/* softmax(q k^T * scale + bias) v for one text and one head, some queries at a time. */

enum { QUERIES = 24 }; /* whose scores are held at a time: whole tiles of every variant */

/* The scores of some queries, and a panel of keys. */
static ptrdiff_t attention_floats(ptrdiff_t tokens, ptrdiff_t head_dim)
{
    return QUERIES * tokens + PANEL * head_dim;
}

/* The dot products of all queries in `q` with the first `keys` keys. */
static void score(const struct attention *a, struct matrix q, const float *k, ptrdiff_t keys,
                  float *scores, float *turned)
{
    memset(scores, 0, (size_t)(q.rows * keys) * sizeof(float));
    for (ptrdiff_t j = 0; j < keys; j += PANEL) {
        ptrdiff_t count = least(keys - j, PANEL);
        for (int half = 0; half < 2; half++) {
            ptrdiff_t from = j + half * LANES, rest = keys - from;
            if (rest > 0)
                turn_rows(k + from * a->k.stride, a->k.stride, least(rest, LANES), a->head_dim,
                          turned + half * LANES);
            else /* there is no such key, but the sums are made */
                turn_rows(k, a->k.stride, 0, a->head_dim, turned + half * LANES);
        }
        struct panel panel = {turned, PANEL, a->head_dim, count};
        panel_tokens(&panel, q, scores + j, keys);
    }
}

/* Scores times `scale`; with ALiBi, the further away, the less. */
static void lean(float *scores, ptrdiff_t keys, ptrdiff_t query, float scale, float slope)
{
    for (ptrdiff_t j = 0; j < keys; j++) {
        int32_t away = (int32_t)(j - query);
        scores[j] = scores[j] * scale - slope * (float)(away < 0 ? -away : away);
    }
}

/* Scores become shares: positive, 1 together. */
static void soften(float *scores, ptrdiff_t keys)
{
    float most = most_of(scores, keys);
    for (ptrdiff_t j = 0; j < keys; j++)
        scores[j] = exponential(scores[j] - most);
    float inverse = 1.0f / sum_of(scores, keys);
    for (ptrdiff_t j = 0; j < keys; j++)
        scores[j] *= inverse;
}

/* out = shares * v. Values are a panel already; those that do not fill one come singly. */
static void mix(const struct attention *a, struct matrix shares, const float *v, float *out)
{
    for (ptrdiff_t t = 0; t < shares.rows; t++)
        memset(out + t * a->out.stride, 0, (size_t)a->head_dim * sizeof(float));
    ptrdiff_t i = 0;
    for (; i + PANEL <= a->head_dim; i += PANEL) {
        struct panel panel = {v + i, a->v.stride, shares.columns, PANEL};
        panel_tokens(&panel, shares, out + i, a->out.stride);
    }
    for (ptrdiff_t t = 0; t < shares.rows && i < a->head_dim; t++)
        for (ptrdiff_t j = 0; j < shares.columns; j++) {
            float share = shares.data[t * shares.stride + j];
            for (ptrdiff_t rest = i; rest < a->head_dim; rest++)
                out[t * a->out.stride + rest] += share * v[j * a->v.stride + rest];
        }
}

/* `count` queries from `first` on, of the text whose rows begin at q, k, v and out. In a causal
   model a query sees the keys up to itself; the rest of its row of shares is zero. */
static void attend_queries(const struct attention *a, const float *q, const float *k, const float *v,
                           float *out, ptrdiff_t first, ptrdiff_t count, ptrdiff_t keys, float slope)
{
    float *scores = a->scratch, *turned = scores + QUERIES * keys;
    struct matrix queries = {(float *)q + first * a->q.stride, count, a->head_dim, a->q.stride};
    score(a, queries, k, keys, scores, turned);
    for (ptrdiff_t r = 0; r < count; r++) {
        float *own = scores + r * keys;
        ptrdiff_t seen = a->causal ? first + r + 1 : keys;
        lean(own, seen, first + r, a->scale, slope);
        soften(own, seen);
        memset(own + seen, 0, (size_t)(keys - seen) * sizeof(float));
    }
    struct matrix shares = {scores, count, keys, keys};
    mix(a, shares, v, out + first * a->out.stride);
}

static void attend(const struct attention *a, ptrdiff_t start, ptrdiff_t end, ptrdiff_t head)
{
    ptrdiff_t tokens = end - start, shared = head / (a->heads / a->kv_heads);
    const float *q = a->q.data + start * a->q.stride + head * a->head_dim;
    const float *k = a->k.data + start * a->k.stride + shared * a->head_dim;
    const float *v = a->v.data + start * a->v.stride + shared * a->head_dim;
    float *out = a->out.data + start * a->out.stride + head * a->head_dim;
    float slope = a->slopes ? a->slopes[head] : 0;
    for (ptrdiff_t first = 0; first < tokens; first += QUERIES) {
        ptrdiff_t count = least(tokens - first, QUERIES);
        attend_queries(a, q, k, v, out, first, count, a->causal ? first + count : tokens, slope);
    }
}
