/* Status codes and error details: every fallible function returns a tv_status and fills a tv_err. */
#ifndef TV_STATUS_H
#define TV_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    TV_OK = 0,
    TV_EARG,         /* bad usage or configuration: exit code 2 */
    TV_ENOMEM,       /* memory, cache or disk budget too small */
    TV_EIO,          /* the operating system refused a file operation */
    TV_EFORMAT,      /* a file's content is not what it must be */
    TV_EUNSUPPORTED, /* understood, and not something this build can do */
    TV_EDEVICE,      /* the accelerator or its driver failed */
    TV_ENUMERIC      /* a non-finite value where a number must be */
} tv_status;

/* Where and why a call failed. Zero-initialise it; the first failure fills it and is kept. */
typedef struct {
    tv_status code;
    char message[1024]; /* one sentence or more: the file, the thing, the way out */
    const char *file;   /* source position of the failure, static string */
    int line;
} tv_err;

#if defined(__GNUC__)
#define TV_NODISCARD __attribute__((warn_unused_result))
#define TV_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#else
#define TV_NODISCARD
#define TV_PRINTF(fmt_index, first_arg)
#endif

/* Records a failure (unless err is NULL or already holds one) and returns code. Use TV_FAIL. */
tv_status tv_err_set(tv_err *err, tv_status code, const char *file, int line, const char *fmt, ...) TV_PRINTF(5, 6);

/* Forgets a recorded failure so that err can be used again. */
void tv_err_clear(tv_err *err);

/* Prints "internal error" with the place and aborts. Use TV_ASSERT. */
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void tv_assert_failed(const char *expr, const char *file, int line);

#define TV_FAIL(err, code, ...) tv_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__)
#define TV_TRY(call)                                                                                                   \
    do {                                                                                                               \
        tv_status tv_try_status_ = (call);                                                                             \
        if (tv_try_status_ != TV_OK) return tv_try_status_;                                                            \
    } while (0)
/* Always compiled in; a failure is a bug of ours, never bad input. */
#define TV_ASSERT(x) ((x) ? (void)0 : tv_assert_failed(#x, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
