/* The kernels for any processor of this architecture. */
#define VARIANT edgekit_plain
#define VARIANT_NAME "plain"
#if defined(__GNUC__)
#define LANES 4
#if defined(__aarch64__)
#define PANEL_TOKENS 8 /* 8 x 2 sums in 32 registers */
#else
#define PANEL_TOKENS 4 /* 4 x 2 sums in 16 registers */
#endif
#else
#define LANES 1 /* a vector is a float: any compiler can do that */
#define PANEL_TOKENS 4
#endif
#include "variant_body.h"
