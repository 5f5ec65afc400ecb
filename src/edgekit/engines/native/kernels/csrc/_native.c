/* The Python module: every size is checked here, then the kernels run without the GIL.

   Calls take positional arguments in the order of edgekit/engines/native/kernels/native.py, which is the only
   caller. Kernels that find a block which is not finite return its number; otherwise -1. */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>

#include <stdlib.h>
#include <string.h>

#include "native.h"

static const struct variant *kernels = &edgekit_plain;
static struct codebooks *codebooks; /* read on first use of a type that needs them */

/* ---- arguments ---------------------------------------------------------------------------- */

enum { MOST_VIEWS = 6, MOST_HEAD_DIM = 1 << 20 }; /* real heads have 512 at most */

/* The buffers of one call, so that all of them can be given back at once. */
struct views {
    Py_buffer buffers[MOST_VIEWS];
    int count;
};

static void release(struct views *views)
{
    while (views->count > 0)
        PyBuffer_Release(&views->buffers[--views->count]);
}

static Py_buffer *view(struct views *views, PyObject *object, int flags)
{
    Py_buffer *buffer = &views->buffers[views->count];
    if (PyObject_GetBuffer(object, buffer, flags) < 0)
        return NULL;
    views->count++;
    return buffer;
}

static bool wrong(const char *name, const char *what)
{
    PyErr_Format(PyExc_ValueError, "%s: %s", name, what);
    return false;
}

/* True where the format, less its byte order, is one of `letters` and an item has four bytes. */
static bool is_format(const Py_buffer *buffer, const char *letters)
{
    const char *format = buffer->format ? buffer->format : "B";
    if (*format == '<' || *format == '=' || *format == '@')
        format++;
    return buffer->itemsize == 4 && *format && strchr(letters, *format) && !format[1];
}

/* Rows of float32, each without gaps; rows may lie apart but not in one another. */
static bool get_matrix(struct views *views, PyObject *object, bool writable, const char *name,
                       struct matrix *matrix)
{
    Py_buffer *b = view(views, object, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO);
    if (!b)
        return false;
    if (!is_format(b, "f") || b->ndim < 1 || b->ndim > 2)
        return wrong(name, "an array of float32 with one or two dimensions is needed");
    matrix->data = b->buf;
    matrix->columns = b->shape[b->ndim - 1];
    matrix->rows = b->ndim == 2 ? b->shape[0] : 1;
    matrix->stride = matrix->columns;
    if ((uintptr_t)b->buf % sizeof(float) || (matrix->columns > 1 && b->strides[b->ndim - 1] != 4))
        return wrong(name, "its rows must be aligned and without gaps");
    if (matrix->rows > 1) {
        if (b->strides[0] % 4 || b->strides[0] / 4 < matrix->columns)
            return wrong(name, "its rows must not lie in one another");
        matrix->stride = b->strides[0] / 4;
    }
    return true;
}

/* A flat run of at least `least` float32. */
static bool get_floats(struct views *views, PyObject *object, bool writable, const char *name,
                       ptrdiff_t least, struct matrix *floats)
{
    if (!get_matrix(views, object, writable, name, floats))
        return false;
    if (floats->rows != 1)
        return wrong(name, "one dimension is needed");
    return floats->columns >= least || wrong(name, "it is too small");
}

static bool get_size(PyObject *object, const char *name, ptrdiff_t most, ptrdiff_t *value)
{
    *value = PyLong_AsSsize_t(object);
    if (*value == -1 && PyErr_Occurred())
        return false;
    return (*value >= 0 && *value <= most) || wrong(name, "out of range");
}

static bool get_kind(PyObject *object, enum cache_kind *kind)
{
    ptrdiff_t number;
    if (!get_size(object, "kind", CACHE_KINDS - 1, &number))
        return false;
    *kind = (enum cache_kind)number;
    return true;
}

/* Exactly so many rows of a cache, without gaps; in each, so many heads of whole blocks. */
static bool get_cells(struct views *views, PyObject *object, bool writable, const char *name,
                      enum cache_kind kind, ptrdiff_t rows, ptrdiff_t heads, ptrdiff_t head_dim,
                      uint8_t **data)
{
    Py_buffer *b = view(views, object, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE);
    if (!b)
        return false;
    ptrdiff_t row_bytes = cache_bytes(kind, head_dim) * heads;
    if (row_bytes < 0)
        return wrong(name, "it is not whole blocks");
    *data = b->buf;
    bool whole = row_bytes ? b->len % row_bytes == 0 && b->len / row_bytes == rows : b->len == 0;
    return whole || wrong(name, "it has the wrong size");
}

/* Two floats for each head of each row, without gaps. */
static bool get_state(struct views *views, PyObject *object, bool writable, ptrdiff_t rows,
                      ptrdiff_t heads, float **data)
{
    Py_buffer *b = view(views, object,
                        PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : PyBUF_SIMPLE));
    if (!b)
        return false;
    *data = b->buf;
    if (!is_format(b, "f") || b->ndim != 3 || (uintptr_t)b->buf % sizeof(float))
        return wrong("state", "an array of float32 with three dimensions is needed");
    return (b->shape[0] == rows && b->shape[1] == heads && b->shape[2] == 2) ||
           wrong("state", "it has the wrong shape");
}

static bool get_float(PyObject *object, float *value)
{
    *value = (float)PyFloat_AsDouble(object);
    return !PyErr_Occurred();
}

static bool get_flag(PyObject *object, bool *value)
{
    int truth = PyObject_IsTrue(object);
    *value = truth > 0;
    return truth >= 0;
}

static const struct type *get_type(PyObject *object)
{
    ptrdiff_t id;
    if (!get_size(object, "type", PY_SSIZE_T_MAX, &id))
        return NULL;
    for (int i = 0; i < kernels->type_count; i++) {
        const struct type *type = &kernels->types[i];
        if (type->ggml_id == id && type->needs_codebooks && !codebooks) {
            wrong("type", "the codebooks are not loaded");
            return NULL;
        }
        if (type->ggml_id == id)
            return type;
    }
    wrong("type", "it cannot be unpacked");
    return NULL;
}

static bool same_shape(const char *name, struct matrix a, struct matrix b)
{
    return (a.rows == b.rows && a.columns == b.columns) || wrong(name, "it has the wrong shape");
}

static bool count_is(Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted)
        PyErr_Format(PyExc_TypeError, "%zd arguments are needed, not %zd", wanted, count);
    return count == wanted;
}

/* ---- calls -------------------------------------------------------------------------------- */

static PyObject *call_dequantize(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct matrix into;
    PyObject *result = NULL;
    const struct type *type;
    Py_buffer *source;
    if (!count_is(count, 3) || !(type = get_type(args[0])))
        return NULL;
    if (!(source = view(&views, args[1], PyBUF_SIMPLE)))
        goto done;
    ptrdiff_t blocks = source->len / type->block_bytes, bad;
    if (source->len % type->block_bytes) {
        wrong("source", "it is not whole blocks");
        goto done;
    }
    if (!get_floats(&views, args[2], true, "into", 0, &into))
        goto done;
    if (blocks > into.columns / type->block_weights) {
        wrong("into", "it is too small");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    bad = type->unpack(source->buf, blocks, into.data, codebooks);
    Py_END_ALLOW_THREADS;
    result = PyLong_FromSsize_t(bad);
done:
    release(&views);
    return result;
}

/* rows x K of `type` in `size` bytes, exactly. */
static bool is_whole_matrix(const struct type *type, ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t size)
{
    if (columns % type->block_weights)
        return wrong("x", "its columns are not whole blocks");
    ptrdiff_t row_bytes = columns / type->block_weights * type->block_bytes;
    bool whole = row_bytes ? size % row_bytes == 0 && size / row_bytes == rows : size == 0;
    return whole || wrong("weights", "they are not as many rows as out has columns");
}

static PyObject *call_multiply(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct matrix x, out, scratch;
    PyObject *result = NULL;
    const struct type *type;
    const struct variant *use = kernels; /* what was checked is what is called */
    Py_buffer *weights;
    if (!count_is(count, 5) || !(type = get_type(args[0])))
        return NULL;
    if (!(weights = view(&views, args[1], PyBUF_SIMPLE)) ||
        !get_matrix(&views, args[2], false, "x", &x) ||
        !get_matrix(&views, args[3], true, "out", &out) ||
        !get_floats(&views, args[4], true, "scratch", use->scratch_floats(x.columns), &scratch) ||
        !is_whole_matrix(type, out.columns, x.columns, weights->len))
        goto done;
    if (x.rows != out.rows) {
        wrong("out", "it has not as many rows as x");
        goto done;
    }
    ptrdiff_t bad;
    Py_BEGIN_ALLOW_THREADS;
    bad = use->multiply(type, weights->buf, x, out, scratch.data, codebooks);
    Py_END_ALLOW_THREADS;
    result = PyLong_FromSsize_t(bad);
done:
    release(&views);
    return result;
}

/* Tasks first..last. The starts may be changed while we run: each is read once, then checked. */
static const char *attend_all(const struct attention *a, const int32_t *starts, ptrdiff_t scratch,
                              ptrdiff_t first, ptrdiff_t last)
{
    const struct variant *use = kernels; /* what is checked is what is called */
    for (ptrdiff_t task = first; task < last; task++) {
        int32_t rows[2];
        memcpy(rows, starts + task / a->heads, sizeof rows);
        if (rows[0] < 0 || rows[1] < rows[0] || rows[1] > a->q.rows)
            return "the rows of a text do not lie in q";
        if (use->attention_floats(rows[1] - rows[0], a->head_dim) > scratch)
            return "scratch is too small for a text";
        use->attend(a, rows[0], rows[1], task % a->heads);
    }
    return NULL;
}

static bool heads_fit(const struct attention *a)
{
    if (a->heads < 1 || a->kv_heads < 1 || a->head_dim < 1 || a->heads % a->kv_heads)
        return wrong("heads", "they cannot be shared evenly");
    if (a->heads > a->q.columns / a->head_dim || a->kv_heads > a->k.columns / a->head_dim)
        return wrong("heads", "q or k has fewer columns");
    return same_shape("out", a->q, a->out) && same_shape("v", a->k, a->v) &&
           (a->q.rows == a->k.rows || wrong("k", "it has not as many rows as q"));
}

/* q k v out starts heads kv_heads head_dim scale causal slopes scratch first last */
static PyObject *call_attention(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0}, more = {.count = 0};
    struct attention a = {0};
    struct matrix slopes, scratch;
    ptrdiff_t first, last;
    PyObject *result = NULL;
    Py_buffer *starts;
    if (!count_is(count, 14))
        return NULL;
    if (!get_matrix(&views, args[0], false, "q", &a.q) ||
        !get_matrix(&views, args[1], false, "k", &a.k) ||
        !get_matrix(&views, args[2], false, "v", &a.v) ||
        !get_matrix(&views, args[3], true, "out", &a.out) ||
        !get_size(args[5], "heads", a.q.columns, &a.heads) ||
        !get_size(args[6], "kv_heads", a.k.columns, &a.kv_heads) ||
        !get_size(args[7], "head_dim", MOST_HEAD_DIM, &a.head_dim) || !heads_fit(&a) ||
        !get_float(args[8], &a.scale) || !get_flag(args[9], &a.causal))
        goto done;
    if (args[10] != Py_None) {
        if (!get_floats(&more, args[10], false, "slopes", a.heads, &slopes))
            goto done;
        a.slopes = slopes.data;
    }
    if (!get_floats(&more, args[11], true, "scratch", 0, &scratch) ||
        !(starts = view(&more, args[4], PyBUF_CONTIG_RO | PyBUF_FORMAT)))
        goto done;
    a.scratch = scratch.data;
    if (!is_format(starts, "il") || starts->ndim != 1 || starts->shape[0] < 1) {
        wrong("starts", "an array of int32 with one dimension is needed");
        goto done;
    }
    ptrdiff_t texts = starts->shape[0] - 1;
    if (!get_size(args[13], "last", texts > PY_SSIZE_T_MAX / a.heads ? 0 : texts * a.heads, &last) ||
        !get_size(args[12], "first", last, &first))
        goto done;
    const char *error;
    Py_BEGIN_ALLOW_THREADS;
    error = attend_all(&a, starts->buf, scratch.columns, first, last);
    Py_END_ALLOW_THREADS;
    if (error)
        wrong("attention", error);
    else
        result = Py_NewRef(Py_None);
done:
    release(&views);
    release(&more);
    return result;
}

/* kind x into */
static PyObject *call_store(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    enum cache_kind kind;
    struct matrix x;
    uint8_t *into;
    PyObject *result = NULL;
    if (!count_is(count, 3) || !get_kind(args[0], &kind))
        return NULL;
    if (!get_matrix(&views, args[1], false, "x", &x) ||
        !get_cells(&views, args[2], true, "into", kind, x.rows, 1, x.columns, &into))
        goto done;
    ptrdiff_t bad;
    Py_BEGIN_ALLOW_THREADS;
    bad = kernels->store(kind, x, into);
    Py_END_ALLOW_THREADS;
    result = PyLong_FromSsize_t(bad);
done:
    release(&views);
    return result;
}

/* Sums of a few such numbers are numbers still. */
static const ptrdiff_t MOST_POSITION = PY_SSIZE_T_MAX / 8;

/* k_kind v_kind heads kv_heads head_dim scale cells first_position query_position reach */
static bool get_span(PyObject *const *args, struct span *s)
{
    ptrdiff_t first_position, query_position;
    if (!get_kind(args[0], &s->k_kind) || !get_kind(args[1], &s->v_kind) ||
        !get_size(args[2], "heads", s->q.columns, &s->heads) ||
        !get_size(args[3], "kv_heads", s->heads, &s->kv_heads) ||
        !get_size(args[4], "head_dim", MOST_HEAD_DIM, &s->head_dim) ||
        !get_float(args[5], &s->scale) || !get_size(args[6], "cells", MOST_POSITION, &s->cells) ||
        !get_size(args[7], "first_position", MOST_POSITION, &first_position) ||
        !get_size(args[8], "query_position", MOST_POSITION, &query_position))
        return false;
    s->ahead = query_position - first_position;
    s->reach = 2 * MOST_POSITION; /* all */
    if (args[9] != Py_None && !get_size(args[9], "reach", MOST_POSITION, &s->reach))
        return false;
    if (s->kv_heads < 1 || s->head_dim < 1 || s->heads % s->kv_heads)
        return wrong("heads", "they cannot be shared evenly");
    if (s->q.columns % s->head_dim || s->q.columns / s->head_dim != s->heads)
        return wrong("heads", "q has not as many columns");
    return same_shape("out", s->q, s->out);
}

/* q k v out state, what get_span reads, scratch first last */
static PyObject *call_attend(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct span s = {0};
    struct matrix scratch;
    ptrdiff_t first, last;
    uint8_t *k, *v;
    const struct variant *use = kernels; /* what was checked is what is called */
    PyObject *result = NULL;
    if (!count_is(count, 18))
        return NULL;
    if (!get_matrix(&views, args[0], false, "q", &s.q) ||
        !get_matrix(&views, args[3], true, "out", &s.out) || !get_span(args + 5, &s) ||
        !get_cells(&views, args[1], false, "k", s.k_kind, s.cells, s.kv_heads, s.head_dim, &k) ||
        !get_cells(&views, args[2], false, "v", s.v_kind, s.cells, s.kv_heads, s.head_dim, &v) ||
        !get_state(&views, args[4], true, s.q.rows, s.heads, &s.state) ||
        !get_floats(&views, args[15], true, "scratch", use->span_floats(s.head_dim), &scratch) ||
        !get_size(args[17], "last", s.kv_heads, &last) || !get_size(args[16], "first", last, &first))
        goto done;
    s.k = k, s.v = v, s.scratch = scratch.data;
    Py_BEGIN_ALLOW_THREADS;
    use->attend_span(&s, first, last);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    release(&views);
    return result;
}

/* out state heads head_dim */
static PyObject *call_settle(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct matrix out;
    ptrdiff_t heads, head_dim;
    float *state;
    PyObject *result = NULL;
    if (!count_is(count, 4))
        return NULL;
    if (!get_matrix(&views, args[0], true, "out", &out) ||
        !get_size(args[2], "heads", out.columns, &heads) ||
        !get_size(args[3], "head_dim", MOST_HEAD_DIM, &head_dim) ||
        !get_state(&views, args[1], false, out.rows, heads, &state))
        goto done;
    if (heads < 1 || out.columns % heads || out.columns / heads != head_dim) {
        wrong("heads", "out has not as many columns");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    kernels->settle(out, state, heads, head_dim);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    release(&views);
    return result;
}

/* x out weight bias eps; a bias of None: none. `centred` is false for rms_norm. */
static PyObject *norm(PyObject *const *args, bool centred)
{
    struct views views = {.count = 0};
    struct matrix x, out, weight, bias = {0};
    PyObject *result = NULL;
    float eps;
    if (!get_matrix(&views, args[0], false, "x", &x) ||
        !get_matrix(&views, args[1], true, "out", &out) || !same_shape("out", x, out) ||
        !get_floats(&views, args[2], false, "weight", x.columns, &weight) ||
        (args[3] != Py_None && !get_floats(&views, args[3], false, "bias", x.columns, &bias)) ||
        !get_float(args[4], &eps))
        goto done;
    Py_BEGIN_ALLOW_THREADS;
    if (centred)
        kernels->layer_norm(x, out, weight.data, bias.data, eps);
    else
        kernels->rms_norm(x, out, weight.data, eps);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    release(&views);
    return result;
}

static PyObject *call_layer_norm(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return count_is(count, 5) ? norm(args, true) : NULL;
}

static PyObject *call_rms_norm(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    return count_is(count, 5) ? norm(args, false) : NULL;
}

/* x up kind; an `up` of None: x alone is changed. */
static PyObject *call_activate(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct matrix x, up;
    ptrdiff_t kind;
    bool gated;
    PyObject *result = NULL;
    if (!count_is(count, 3))
        return NULL;
    gated = args[1] != Py_None;
    if (!get_matrix(&views, args[0], true, "x", &x) ||
        (gated && !(get_matrix(&views, args[1], false, "up", &up) && same_shape("up", x, up))) ||
        !get_size(args[2], "kind", SILU, &kind))
        goto done;
    Py_BEGIN_ALLOW_THREADS;
    if (gated)
        kernels->gate(x, up, (enum activation)kind);
    else
        kernels->activate(x, (enum activation)kind);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    release(&views);
    return result;
}

/* x cos sin heads head_dim neox */
static PyObject *call_rope(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    struct views views = {.count = 0};
    struct matrix x, cos, sin;
    ptrdiff_t heads, head_dim;
    bool neox;
    PyObject *result = NULL;
    if (!count_is(count, 6))
        return NULL;
    if (!get_matrix(&views, args[0], true, "x", &x) ||
        !get_matrix(&views, args[1], false, "cos", &cos) ||
        !get_matrix(&views, args[2], false, "sin", &sin) || !same_shape("sin", cos, sin) ||
        !get_size(args[3], "heads", x.columns, &heads) ||
        !get_size(args[4], "head_dim", x.columns, &head_dim) || !get_flag(args[5], &neox))
        goto done;
    if (head_dim < 1 || heads > x.columns / head_dim || cos.columns > head_dim / 2) {
        wrong("head_dim", "x has fewer columns, or more turn than a head has");
        goto done;
    }
    if (cos.rows != x.rows) {
        wrong("cos", "it has not as many rows as x");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS;
    kernels->rope(x, cos, sin, heads, head_dim, neox);
    Py_END_ALLOW_THREADS;
    result = Py_NewRef(Py_None);
done:
    release(&views);
    return result;
}

/* ---- the module itself -------------------------------------------------------------------- */

/* Copied, once: whoever gave them may let them go. */
static PyObject *call_load_codebooks(PyObject *self, PyObject *bytes)
{
    (void)self;
    struct views views = {.count = 0};
    Py_buffer *buffer = view(&views, bytes, PyBUF_SIMPLE);
    if (!buffer)
        return NULL;
    if (buffer->len != sizeof *codebooks)
        wrong("codebooks", "they have the wrong size");
    else if (!codebooks) { /* other threads may be reading those that are there */
        struct codebooks *copy = malloc(sizeof *copy);
        if (copy)
            codebooks = memcpy(copy, buffer->buf, sizeof *copy);
        else
            PyErr_NoMemory();
    }
    release(&views);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_scratch_floats(PyObject *self, PyObject *object)
{
    (void)self;
    ptrdiff_t columns;
    if (!get_size(object, "columns", MOST_POSITION, &columns))
        return NULL;
    return PyLong_FromSsize_t(kernels->scratch_floats(columns));
}

static PyObject *call_attention_floats(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    (void)self;
    ptrdiff_t tokens, head_dim;
    if (!count_is(count, 2) || !get_size(args[0], "tokens", INT32_MAX, &tokens) ||
        !get_size(args[1], "head_dim", MOST_HEAD_DIM, &head_dim))
        return NULL;
    return PyLong_FromSsize_t(kernels->attention_floats(tokens, head_dim));
}

static PyObject *call_attend_floats(PyObject *self, PyObject *object)
{
    (void)self;
    ptrdiff_t head_dim;
    if (!get_size(object, "head_dim", MOST_HEAD_DIM, &head_dim))
        return NULL;
    return PyLong_FromSsize_t(kernels->span_floats(head_dim));
}

/* What the module holds for good: its tables, and the codebooks once they are loaded. */
static PyObject *call_held_bytes(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    ptrdiff_t tables = kernels->static_bytes + (ptrdiff_t)(sizeof kernels + sizeof codebooks);
    return PyLong_FromSsize_t(tables + (codebooks ? (ptrdiff_t)sizeof *codebooks : 0));
}

static PyObject *call_type_ids(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyObject *ids = PyTuple_New(kernels->type_count);
    for (int i = 0; ids && i < kernels->type_count; i++) {
        PyObject *id = PyLong_FromLong(kernels->types[i].ggml_id);
        if (!id || PyTuple_SetItem(ids, i, id) < 0)
            Py_CLEAR(ids);
    }
    return ids;
}

static PyObject *call_variants(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    const struct variant *found[MOST_VARIANTS];
    int count = edgekit_variants(found);
    PyObject *names = PyTuple_New(count);
    for (int i = 0; names && i < count; i++) {
        PyObject *name = PyUnicode_FromString(found[i]->name);
        if (!name || PyTuple_SetItem(names, i, name) < 0)
            Py_CLEAR(names);
    }
    return names;
}

/* For tests: all calls from now on are this variant's. */
static PyObject *call_use_variant(PyObject *self, PyObject *name)
{
    (void)self;
    const struct variant *found[MOST_VARIANTS];
    for (int i = edgekit_variants(found) - 1; i >= 0; i--)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, found[i]->name) == 0) {
            kernels = found[i];
            return Py_NewRef(Py_None);
        }
    wrong("variant", "this machine has none of that name");
    return NULL;
}

static int start(PyObject *module)
{
    (void)module;
    const struct variant *found[MOST_VARIANTS];
    kernels = found[edgekit_variants(found) - 1];
    return 0;
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))call_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FAST(dequantize),
    FAST(multiply),
    FAST(attention),
    FAST(store),
    FAST(attend),
    FAST(settle),
    FAST(layer_norm),
    FAST(rms_norm),
    FAST(activate),
    FAST(rope),
    {"load_codebooks", call_load_codebooks, METH_O, NULL},
    {"scratch_floats", call_scratch_floats, METH_O, NULL},
    FAST(attention_floats),
    {"attend_floats", call_attend_floats, METH_O, NULL},
    {"held_bytes", call_held_bytes, METH_NOARGS, NULL},
    {"type_ids", call_type_ids, METH_NOARGS, NULL},
    {"variants", call_variants, METH_NOARGS, NULL},
    {"use_variant", call_use_variant, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, start}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Kernels of the embedder; called by edgekit.engines.native.kernels.native only.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
