/* block() of the sets of kernels on 512-bit vectors: the sizes that 32 registers hold (8 rows by 2 panels, 4 by 4) as
 * instances of the including file's block_of(rows, panels, b), of at most its BLOCK_ROWS = 8 rows. Included behind it.
 */
#define DEFINE_BLOCK(rows)                                                                                             \
    static void block_##rows(int panels, const cpu_block *b) {                                                         \
        if (panels == 1)                                                                                               \
            block_of(rows, 1, b);                                                                                      \
        else if (panels == 2)                                                                                          \
            block_of(rows, 2, b);                                                                                      \
        else                                                                                                           \
            block_of(rows < 4 ? rows : 4, 4, b);                                                                       \
    }
DEFINE_BLOCK(1)
DEFINE_BLOCK(2)
DEFINE_BLOCK(3)
DEFINE_BLOCK(4)
DEFINE_BLOCK(5)
DEFINE_BLOCK(6)
DEFINE_BLOCK(7)
DEFINE_BLOCK(8)

static void block(int rows, int panels, const cpu_block *b) {
    static void (*const of[BLOCK_ROWS + 1])(int, const cpu_block *) = {NULL,    block_1, block_2, block_3, block_4,
                                                                       block_5, block_6, block_7, block_8};
    TV_ASSERT(rows <= (panels == 4 ? 4 : BLOCK_ROWS));
    of[rows](panels, b);
}
