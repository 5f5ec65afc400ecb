/* Multiplies with one variant of the kernels, without Python: for processors that are emulated.

   multiply_cases: prints the variants that the processor can run.
   multiply_cases VARIANT CODEBOOKS < cases > results. A case is four int32 (type, rows, columns, tokens), the weights and
   the floats of x; a result is an int32 (-1, or the bad block) and the floats of out. */
#include "native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *array(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (!memory)
        exit(3);
    return memory;
}

static const struct type *type_of(const struct variant *variant, int id)
{
    for (int i = 0; i < variant->type_count; i++)
        if (variant->types[i].ggml_id == id)
            return &variant->types[i];
    exit(4);
}

int main(int count, char **words)
{
    const struct variant *found[MOST_VARIANTS], *variant = NULL;
    struct codebooks *books = array(1, sizeof *books);
    int32_t sizes[4];
    for (int i = edgekit_variants(found) - 1; i >= 0; i--) {
        if (count == 1)
            printf("%s\n", found[i]->name);
        else if (!strcmp(found[i]->name, words[1]))
            variant = found[i];
    }
    if (count == 1)
        return 0;
    FILE *file = fopen(words[2], "rb");
    if (!variant || !file || fread(books, sizeof *books, 1, file) != 1)
        return 2;
    while (fread(sizes, sizeof sizes, 1, stdin) == 1) {
        const struct type *type = type_of(variant, sizes[0]);
        ptrdiff_t rows = sizes[1], columns = sizes[2], tokens = sizes[3];
        size_t bytes = (size_t)(rows * columns / type->block_weights * type->block_bytes);
        uint8_t *weights = array(bytes, 1);
        struct matrix x = {array((size_t)(tokens * columns), 4), tokens, columns, columns};
        struct matrix out = {array((size_t)(tokens * rows), 4), tokens, rows, rows};
        float *scratch = array((size_t)variant->scratch_floats(columns), 4);
        if (fread(weights, 1, bytes, stdin) != bytes ||
            fread(x.data, 4, (size_t)(tokens * columns), stdin) != (size_t)(tokens * columns))
            return 5;
        int32_t bad = (int32_t)variant->multiply(type, weights, x, out, scratch, books);
        fwrite(&bad, 4, 1, stdout);
        fwrite(out.data, 4, (size_t)(tokens * rows), stdout);
        free(weights), free(x.data), free(out.data), free(scratch);
    }
    return 0;
}
