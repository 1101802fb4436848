/* safetensors files: a strict reader over a mapping, and a writer whose file is all there or not there. */
#ifndef TV_SAFETENSORS_H
#define TV_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/tensor.h"

enum { TV_ST_MAX_DIMS = 8 };

/* One tensor. data may be misaligned for its dtype (older writers): read through memcpy or tv_st_aligned. */
typedef struct {
    const char *name; /* owned by the file */
    tv_dtype dtype;
    int n_dims; /* 0 = scalar */
    int64_t shape[TV_ST_MAX_DIMS];
    const unsigned char *data; /* [bytes], inside the mapping; valid until tv_st_close */
    size_t bytes;
} tv_st_tensor;

typedef struct tv_st_file tv_st_file;

/* Maps and checks path: header length, JSON, duplicate names and keys, dtypes, shapes (exact beyond 2^53, overflow),
 * offsets (whole, ordered, inside, no gap, no overlap, no trailing bytes), __metadata__ strings. Accepts white space
 * around the header, zero-size tensors and scalars. Names the file and the fault; hints at Git-LFS pointers.
 * TV_EIO: cannot be read; TV_EFORMAT: not such a file; TV_EUNSUPPORTED: a dtype or a rank that this program lacks. */
TV_NODISCARD tv_status tv_st_open(const char *path, tv_st_file **out, tv_err *err);
/* The same for bytes in memory that outlive the file object (also the fuzz entry). name goes into messages. */
TV_NODISCARD tv_status tv_st_parse(const unsigned char *data, size_t size, const char *name, tv_st_file **out,
                                   tv_err *err);
void tv_st_close(tv_st_file *file); /* NULL is fine */

const char *tv_st_name(const tv_st_file *file); /* the path it was opened from */
size_t tv_st_count(const tv_st_file *file);
const tv_st_tensor *tv_st_at(const tv_st_file *file, size_t i);           /* in order of offset, then size, then name */
const tv_st_tensor *tv_st_find(const tv_st_file *file, const char *name); /* NULL when absent; O(log n) */
const char *tv_st_meta(const tv_st_file *file, const char *key);          /* NULL when absent; O(log n) */
/* Finds name and demands dtype and shape (n_dims entries; -1 matches any); prints expected and found. */
TV_NODISCARD tv_status tv_st_need(const tv_st_file *file, const char *name, tv_dtype dtype, int n_dims,
                                  const int64_t *shape, const tv_st_tensor **out, tv_err *err);
/* The tensor's data where it is aligned for its dtype; else a copy, which *copy receives for the caller to free (NULL
 * otherwise). Returns NULL only when there is no memory for the copy. */
const void *tv_st_aligned(const tv_st_tensor *t, void **copy);

/* What to write: n tensors and string metadata pairs {key, value, key, value, ..., NULL} (NULL: none). Equal arguments
 * give equal bytes: tensors and metadata stay in the given order. The data section starts at a multiple of 64 bytes and
 * the format allows no gaps, so tensors of wide dtypes go first. Atomic (base/file.h). TV_EARG: duplicate names, text
 * that is not UTF-8, bytes that do not follow from shape and dtype. */
TV_NODISCARD tv_status tv_st_write(const char *path, const tv_st_tensor *tensors, size_t n, const char *const *metadata,
                                   tv_err *err);
/* A tensor whose data lies in n equal pieces, one after another along its first dimension. */
typedef struct {
    const void *const *piece; /* [n] pointers to bytes / n bytes each; NULL: the tensor's own data pointer counts */
    size_t n;
} tv_st_pieces;
/* tv_st_write for tensors whose data is not in one piece: pieces[i] belongs to tensors[i]. */
TV_NODISCARD tv_status tv_st_write_pieces(const char *path, const tv_st_tensor *tensors, const tv_st_pieces *pieces,
                                          size_t n, const char *const *metadata, tv_err *err);
/* Bytes that tv_st_write would produce, within 64 KiB above. */
size_t tv_st_write_size(const tv_st_tensor *tensors, size_t n, const char *const *metadata);

#endif
