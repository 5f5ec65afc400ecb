/* One set of kernels. The file that includes this has set VARIANT, VARIANT_NAME, LANES (floats in a
   vector) and PANEL_TOKENS. */
#include "native.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "vectors.h"

#include "digits.h"

#include "coded.h"

#include "blocks.h"
#include "superblocks.h"

#include "codebook_blocks.h"

#include "types.h"

#include "dots.h"
#include "panels.h"

#include "pairs.h"

#include "multiply.h"

#include "elements.h"

#include "attention.h"

#include "cells.h"
#include "spans.h"

const struct variant VARIANT = {
    .name = VARIANT_NAME,
    .types = TYPES,
    .type_count = sizeof TYPES / sizeof TYPES[0],
    .scratch_floats = scratch_floats,
    .static_bytes = sizeof TYPES + sizeof(struct variant) + sizeof UNEVEN + sizeof FOUR_BIT_FLOATS +
                    sizeof SCORE + sizeof MIX,
    .multiply = multiply,
    .attention_floats = attention_floats,
    .attend = attend,
    .store = store_cells,
    .span_floats = span_floats,
    .attend_span = attend_span,
    .settle = settle,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .activate = activate,
    .gate = gate_by,
    .rope = rope,
};
