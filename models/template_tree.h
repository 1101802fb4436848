/* What models/template_parse.c makes of a chat template and models/template.c runs. */
#ifndef TV_TEMPLATE_TREE_H
#define TV_TEMPLATE_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

typedef enum { UNDEFINED, NONE, BOOLEAN, INTEGER, STRING, LIST, DICT, LOOP } type;

typedef struct value value;
typedef struct entry entry;
struct value {
    type type;
    int64_t i;          /* BOOLEAN, INTEGER; LOOP: the index */
    const char *s;      /* STRING: not NUL-terminated */
    size_t n;           /* STRING: bytes; LIST and LOOP: items */
    const value *items; /* LIST, LOOP */
    entry **entries;    /* DICT: head of the list */
    int writable;       /* DICT: a namespace */
};

struct entry {
    const char *name;
    size_t size;
    value v;
    entry *next;
};

typedef enum {
    /* statements */
    TEXT,  /* v */
    PRINT, /* a */
    IF,    /* a: condition, b: block, c: otherwise */
    FOR,   /* v: name, a: over what, b: block */
    SET,   /* v: name, a: value, b: NULL or the namespace whose attribute is set */
    /* expressions */
    CONSTANT,  /* v */
    NAME,      /* v */
    ATTRIBUTE, /* a . v */
    ITEM,      /* a [b] */
    SLICE,     /* a [b : c : d] */
    CALL,      /* a (b, ...) */
    FILTER,    /* a | v (b, ...) */
    TEST,      /* a is v */
    NOT,       /* a */
    NEGATE,    /* a */
    AND,
    OR,
    CHOICE, /* a if b else c */
    BINARY, /* a op b */
} kind;

typedef struct node node;
struct node {
    kind kind;
    size_t at; /* offset in the source */
    char op;   /* BINARY: one of + ~ - * % and = ! < > l g i n for ==, !=, <, >, <=, >=, in, not in */
    value v;   /* a constant, or a name as a STRING; a keyword argument's name is in key */
    value key;
    node *a, *b, *c, *d;
    node *next; /* of a block or of arguments */
};

/* A template and all that was made of it. */
typedef struct {
    char *source; /* line ends normalized */
    size_t size;
    node *root;                /* the first statement */
    int has_flag;              /* names enable_thinking */
    struct tree_block *blocks; /* everything allocated; freed together */
    size_t allocated;
    tv_status status; /* the first failure; parsing and evaluation then come to their end by themselves */
    tv_err *err;
} tree;

/* Parses source, at most 1 MiB, into *t; the status is in it. Nesting is at most 100 deep and a tag has at most 1000
 * parts, which bounds the recursion of what walks the tree. Free it in either case. */
void tv_tree_parse(tree *t, const char *source, tv_err *err);
void tv_tree_free(tree *t);
/* Records a failure at an offset of the source unless there is one already. */
void tv_tree_fail(tree *t, tv_status status, size_t at, const char *fmt, ...) TV_PRINTF(4, 5);
void tv_tree_unsupported(tree *t, size_t at, const char *what, const char *s, size_t n);
/* Zeroed memory that lives as long as the tree. */
void *tv_tree_allocate(tree *t, size_t size);

static inline value string_of(const char *s, size_t n) { return (value){.type = STRING, .s = s, .n = n}; }
static inline value integer(int64_t i) { return (value){.type = INTEGER, .i = i}; }
static inline value boolean(int b) { return (value){.type = BOOLEAN, .i = !!b}; }

static inline int tv_tree_is(const char *s, size_t n, const char *word) {
    return strlen(word) == n && (!n || !memcmp(s, word, n));
}

#endif
