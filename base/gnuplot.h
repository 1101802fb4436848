/* gnuplot, where it is installed: a script in, a picture out. */
#ifndef TV_GNUPLOT_H
#define TV_GNUPLOT_H

#include <stddef.h>

/* Runs the gnuplot of PATH on a script whose terminal writes to standard output (no "set output"). 1 when it drew:
 * *picture holds its bytes with a NUL behind them (the caller frees). 0 when gnuplot is missing, fails or draws
 * nothing.
 */
int tv_gnuplot(const char *script, char **picture, size_t *size);

#endif
