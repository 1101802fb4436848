#include "models/template_tree.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "models/unicode.h"

enum { MAX_SOURCE = 1 << 20, MAX_PARTS = 1000, MAX_NESTING = 100 };

typedef enum {
    T_END,
    T_TEXT,
    T_OPEN_PRINT,
    T_CLOSE_PRINT,
    T_OPEN,
    T_CLOSE,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_OPERATOR
} token_kind;

typedef struct {
    token_kind kind;
    size_t at;
    const char *s;
    size_t n;
} token;

typedef struct {
    tree *tree;
    token *tokens;
    size_t n_tokens, capacity, next;
    int parts, nesting; /* of the tag, and around the place, so far */
} parser;

/* ---- The tree's memory and failures ------------------------------------------------------------------------------ */

void tv_tree_fail(tree *t, tv_status status, size_t at, const char *fmt, ...) {
    if (t->status != TV_OK) return;
    int line = 1;
    for (size_t i = 0; i < at && i < t->size; i++) line += t->source[i] == '\n';
    char what[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    static const char way_out[] = "render the prompt yourself and give it with --raw";
    t->status = status == TV_EARG
                    ? TV_FAIL(t->err, status, "the model's chat template (line %d) %s", line, what)
                    : TV_FAIL(t->err, status, "the model's chat template (line %d) %s: %s", line, what, way_out);
}

void tv_tree_unsupported(tree *t, size_t at, const char *what, const char *s, size_t n) {
    tv_tree_fail(t, TV_EUNSUPPORTED, at, "uses %s %.*s, which is not supported", what, (int)(n < 60 ? n : 60), s);
}

struct tree_block {
    struct tree_block *next;
    size_t unused; /* what follows is aligned for everything stored here */
};

void *tv_tree_allocate(tree *t, size_t size) {
    struct tree_block *b = tv_xcalloc(1, sizeof *b + size);
    b->next = t->blocks;
    t->blocks = b;
    t->allocated += size;
    return b + 1;
}

void tv_tree_free(tree *t) {
    while (t->blocks) {
        struct tree_block *next = t->blocks->next;
        free(t->blocks);
        t->blocks = next;
    }
    free(t->source);
    t->source = NULL;
}

/* ---- Tokens ----------------------------------------------------------------------------------------------------- */

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

static void add_token(parser *p, token_kind kind, size_t at, const char *s, size_t n) {
    if (p->n_tokens == p->capacity)
        p->tokens = tv_xrealloc(p->tokens, (p->capacity = 2 * p->capacity + 256) * sizeof *p->tokens);
    p->tokens[p->n_tokens++] = (token){kind, at, s, n};
}

/* A quoted string at source[at]; returns the offset behind it. */
static size_t lex_string(parser *p, size_t at) {
    char quote = p->tree->source[at];
    char *s = tv_tree_allocate(p->tree, p->tree->size - at);
    size_t n = 0, i = at + 1;
    for (; i < p->tree->size && p->tree->source[i] != quote; i++) {
        char c = p->tree->source[i];
        if (c == '\\') {
            static const char from[] = "nrt\\'\"", to[] = "\n\r\t\\'\"";
            const char *found = i + 1 < p->tree->size ? strchr(from, p->tree->source[++i]) : NULL;
            if (!found) {
                tv_tree_fail(p->tree, TV_EUNSUPPORTED, i,
                             "uses an escape other than \\n \\r \\t \\\\ \\' and \\\", which is not supported");
                return p->tree->size;
            }
            c = to[found - from];
        }
        s[n++] = c;
    }
    if (i >= p->tree->size) tv_tree_fail(p->tree, TV_EFORMAT, at, "holds a string without an end");
    add_token(p, T_STRING, at, s, n);
    return i + 1;
}

/* The tokens of a tag whose text begins at source[at]; close: "%}" or "}}". Returns the offset behind the tag. */
static size_t lex_tag(parser *p, size_t at, const char *close) {
    static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "(", ")", "[", "]", ".", ",",
                                            ":",  "|",  "+",  "-",  "~",  "*",  "/", "%", "<", ">", "="};
    int statement = close[0] == '%';
    while (at < p->tree->size && p->tree->status == TV_OK) {
        const char *s = p->tree->source + at;
        size_t n = 1;
        int keeps = statement && *s == '+' && !strncmp(s + 1, close, 2),
            strips = *s == '-' && !strncmp(s + 1, close, 2);
        if (is_space(*s)) {
            at++;
        } else if (!strncmp(s, close, 2) || keeps || strips) {
            add_token(p, statement ? T_CLOSE : T_CLOSE_PRINT, at, s, 2);
            at += (size_t)(2 + keeps + strips);
            while (strips && is_space(p->tree->source[at])) at++;
            if (statement && !keeps && !strips && p->tree->source[at] == '\n') at++;
            return at;
        } else if (is_letter(*s)) {
            while (is_letter(s[n]) || is_digit(s[n])) n++;
            add_token(p, T_NAME, at, s, n);
            at += n;
        } else if (is_digit(*s)) {
            while (is_digit(s[n])) n++;
            if (n > 9 || (n > 1 && *s == '0') || is_letter(s[n]) || (s[n] == '.' && is_digit(s[n + 1])))
                tv_tree_unsupported(p->tree, at, "the number", s, n + 2);
            add_token(p, T_INTEGER, at, s, n);
            at += n;
        } else if (*s == '\'' || *s == '"') {
            at = lex_string(p, at);
        } else {
            size_t i = 0, count = sizeof operators / sizeof *operators;
            while (i < count && strncmp(s, operators[i], strlen(operators[i]))) i++;
            if (i == count) {
                tv_tree_unsupported(p->tree, at, "the character", s, tv_utf8_char(s, p->tree->size - at, NULL, NULL));
                break;
            }
            add_token(p, T_OPERATOR, at, s, strlen(operators[i]));
            at += strlen(operators[i]);
        }
    }
    tv_tree_fail(p->tree, TV_EFORMAT, at, "holds a tag without an end");
    return p->tree->size;
}

/* Cuts the source into text and tags. White space goes as in Jinja: a minus takes all of it, and without one a
 * statement or comment takes the blanks that it follows on its line and the line end behind it. */
static void lex(parser *p) {
    size_t at = 0;
    while (at < p->tree->size && p->tree->status == TV_OK) {
        size_t open = at;
        while (open < p->tree->size &&
               !(p->tree->source[open] == '{' && p->tree->source[open + 1] && strchr("{%#", p->tree->source[open + 1])))
            open++;
        size_t end = open;
        char what = open < p->tree->size ? p->tree->source[open + 1] : 0, sign = what ? p->tree->source[open + 2] : 0;
        if (what && sign == '-') {
            while (end > at && is_space(p->tree->source[end - 1])) end--;
        } else if (what && what != '{' && sign != '+') {
            size_t line = end;
            while (line > at && is_space(p->tree->source[line - 1]) && p->tree->source[line - 1] != '\n') line--;
            if (line == 0 || p->tree->source[line - 1] == '\n') end = line;
        }
        if (end > at) add_token(p, T_TEXT, at, p->tree->source + at, end - at);
        if (!what) return;
        at = open + 2 + (sign == '-' || (sign == '+' && what != '{'));
        if (what == '#') {
            const char *close = strstr(p->tree->source + at, "#}");
            if (!close) {
                tv_tree_fail(p->tree, TV_EFORMAT, open, "holds a comment without an end");
                return;
            }
            int strips = close > p->tree->source + at && close[-1] == '-',
                keeps = close > p->tree->source + at && close[-1] == '+';
            at = (size_t)(close - p->tree->source) + 2;
            while (strips && is_space(p->tree->source[at])) at++;
            if (!strips && !keeps && p->tree->source[at] == '\n') at++;
        } else {
            add_token(p, what == '%' ? T_OPEN : T_OPEN_PRINT, open, p->tree->source + open, 2);
            at = lex_tag(p, at, what == '%' ? "%}" : "}}");
        }
    }
}

/* ---- Parsing ---------------------------------------------------------------------------------------------------- */

static const token *peek(parser *p) {
    static const token end = {.kind = T_END, .s = "", .n = 0};
    return p->tree->status == TV_OK && p->next < p->n_tokens ? &p->tokens[p->next] : &end;
}

static int at_operator(parser *p, const char *s) {
    const token *t = peek(p);
    return t->kind == T_OPERATOR && tv_tree_is(t->s, t->n, s);
}

static int at_name(parser *p, const char *s) {
    const token *t = peek(p);
    return t->kind == T_NAME && tv_tree_is(t->s, t->n, s);
}

static int take_operator(parser *p, const char *s) { return at_operator(p, s) ? (p->next++, 1) : 0; }
static int take_name(parser *p, const char *s) { return at_name(p, s) ? (p->next++, 1) : 0; }

static size_t here(parser *p) { return p->next < p->n_tokens ? p->tokens[p->next].at : p->tree->size; }

static void unexpected(parser *p, const char *wanted) {
    const token *t = peek(p);
    tv_tree_fail(p->tree, TV_EFORMAT, here(p), "has \"%.*s\" where %s is expected", (int)(t->n < 40 ? t->n : 40), t->s,
                 wanted);
}

static void expect_operator(parser *p, const char *s) {
    if (!take_operator(p, s)) unexpected(p, s);
}

static void expect_name(parser *p, const char *s) {
    if (!take_name(p, s)) unexpected(p, s);
}

static void expect_close(parser *p) {
    if (peek(p)->kind == T_CLOSE)
        p->next++;
    else
        unexpected(p, "%}");
}

static node *new_node(parser *p, kind kind, size_t at, node *a, node *b) {
    node *n = tv_tree_allocate(p->tree, sizeof *n);
    *n = (node){.kind = kind, .at = at, .a = a, .b = b};
    if (++p->parts > MAX_PARTS)
        tv_tree_fail(p->tree, TV_EUNSUPPORTED, at, "has a tag of more than %d parts", MAX_PARTS);
    return n;
}

/* A name as a string value. */
static value take_any_name(parser *p, const char *wanted) {
    const token *t = peek(p);
    if (t->kind != T_NAME) {
        unexpected(p, wanted);
        return string_of("", 0);
    }
    p->next++;
    return string_of(t->s, t->n);
}

static node *parse_expression(parser *p);

/* What follows an opening bracket of a call: value, key = value, ... ) */
static node *parse_arguments(parser *p) {
    node *first = NULL, **last = &first;
    while (p->tree->status == TV_OK && !take_operator(p, ")")) {
        value key = {.type = UNDEFINED};
        if (first) expect_operator(p, ",");
        if (peek(p)->kind == T_NAME && p->next + 1 < p->n_tokens && p->tokens[p->next + 1].kind == T_OPERATOR &&
            tv_tree_is(p->tokens[p->next + 1].s, p->tokens[p->next + 1].n, "=")) {
            key = take_any_name(p, "a name");
            expect_operator(p, "=");
        }
        node *argument = new_node(p, NOT, here(p), NULL, NULL); /* a wrapper: one node may not be in two lists */
        argument->a = parse_expression(p);
        argument->key = key;
        *last = argument;
        last = &argument->next;
    }
    return first;
}

static node *parse_primary(parser *p) {
    const token *t = peek(p);
    node *n = new_node(p, CONSTANT, here(p), NULL, NULL);
    if (t->kind == T_STRING) {
        n->v = string_of(t->s, t->n);
    } else if (t->kind == T_INTEGER) {
        n->v = integer(0);
        for (size_t i = 0; i < t->n; i++) n->v.i = 10 * n->v.i + (t->s[i] - '0');
    } else if (t->kind == T_NAME) {
        if (tv_tree_is(t->s, t->n, "true") || tv_tree_is(t->s, t->n, "True"))
            n->v = boolean(1);
        else if (tv_tree_is(t->s, t->n, "false") || tv_tree_is(t->s, t->n, "False"))
            n->v = boolean(0);
        else if (tv_tree_is(t->s, t->n, "none") || tv_tree_is(t->s, t->n, "None"))
            n->v = (value){.type = NONE};
        else
            n->kind = NAME, n->v = string_of(t->s, t->n);
    } else if (take_operator(p, "(")) {
        if (++p->nesting > MAX_NESTING)
            tv_tree_fail(p->tree, TV_EUNSUPPORTED, n->at, "nests deeper than %d levels", MAX_NESTING);
        n = parse_expression(p);
        p->nesting--;
        expect_operator(p, ")");
        return n;
    } else {
        unexpected(p, "a value");
        return n;
    }
    p->next++;
    if (t->kind == T_STRING && peek(p)->kind == T_STRING)
        tv_tree_unsupported(p->tree, here(p), "strings in a row", "", 0);
    return n;
}

/* [index] or [from : to : step], behind the bracket. */
static node *parse_brackets(parser *p, node *of, size_t at) {
    node *part[3] = {0};
    int colons = 0;
    while (p->tree->status == TV_OK && !at_operator(p, "]")) {
        if (take_operator(p, ":")) {
            if (++colons > 2) unexpected(p, "]");
        } else if (part[colons]) {
            unexpected(p, "]");
        } else {
            part[colons] = parse_expression(p);
        }
    }
    expect_operator(p, "]");
    node *n = new_node(p, colons ? SLICE : ITEM, at, of, part[0]);
    n->c = part[1];
    n->d = part[2];
    if (!colons && !part[0]) unexpected(p, "an index");
    return n;
}

static node *parse_unary(parser *p) {
    size_t at = here(p);
    if (at_operator(p, "-")) {
        p->next++;
        if (++p->nesting > MAX_NESTING)
            tv_tree_fail(p->tree, TV_EUNSUPPORTED, at, "nests deeper than %d levels", MAX_NESTING);
        node *n = new_node(p, NEGATE, at, parse_unary(p), NULL);
        p->nesting--;
        return n;
    }
    node *n = parse_primary(p);
    for (int filtered = 0; p->tree->status == TV_OK;) { /* an attribute or item of what was filtered needs brackets */
        at = here(p);
        if (!filtered && take_operator(p, ".")) {
            n = new_node(p, ATTRIBUTE, at, n, NULL);
            n->v = take_any_name(p, "an attribute");
        } else if (!filtered && take_operator(p, "[")) {
            n = parse_brackets(p, n, at);
        } else if (take_operator(p, "(")) {
            n = new_node(p, CALL, at, n, parse_arguments(p));
        } else if (take_operator(p, "|")) {
            n = new_node(p, FILTER, at, n, NULL);
            n->v = take_any_name(p, "a filter");
            if (take_operator(p, "(")) n->b = parse_arguments(p);
            filtered = 1;
        } else if (take_name(p, "is")) {
            int negated = take_name(p, "not");
            n = new_node(p, TEST, at, n, NULL);
            n->v = take_any_name(p, "a test");
            if (negated) n = new_node(p, NOT, at, n, NULL);
            filtered = 1;
        } else {
            break;
        }
    }
    return n;
}

/* Operators of levels 0 (comparisons) to 3 (products), each with the letter that stands for it in a node. */
static char take_level(parser *p, int level) {
    static const struct {
        const char *s;
        int level;
        char op;
    } operators[] = {{"==", 0, '='}, {"!=", 0, '!'}, {"<", 0, '<'}, {">", 0, '>'}, {"<=", 0, 'l'}, {">=", 0, 'g'},
                     {"+", 1, '+'},  {"-", 1, '-'},  {"~", 2, '~'}, {"*", 3, '*'}, {"%", 3, '%'}};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].level == level && take_operator(p, operators[i].s)) return operators[i].op;
    if (level == 0 && take_name(p, "in")) return 'i';
    if (level == 0 && at_name(p, "not") && p->next + 1 < p->n_tokens && p->tokens[p->next + 1].kind == T_NAME &&
        tv_tree_is(p->tokens[p->next + 1].s, p->tokens[p->next + 1].n, "in")) {
        p->next += 2;
        return 'n';
    }
    return 0;
}

static node *parse_binary(parser *p, int level) {
    if (level == 4) return parse_unary(p);
    node *n = parse_binary(p, level + 1);
    for (int count = 0; p->tree->status == TV_OK; count++) {
        size_t at = here(p);
        char op = take_level(p, level);
        if (!op) break;
        if (level == 0 && count) tv_tree_unsupported(p->tree, at, "a chain of comparisons", "", 0);
        n = new_node(p, BINARY, at, n, parse_binary(p, level + 1));
        n->op = op;
    }
    return n;
}

static node *parse_not(parser *p) {
    size_t at = here(p);
    if (!take_name(p, "not")) return parse_binary(p, 0);
    if (++p->nesting > MAX_NESTING)
        tv_tree_fail(p->tree, TV_EUNSUPPORTED, at, "nests deeper than %d levels", MAX_NESTING);
    node *n = new_node(p, NOT, at, parse_not(p), NULL);
    p->nesting--;
    return n;
}

static node *parse_and(parser *p) {
    node *n = parse_not(p);
    for (size_t at = here(p); take_name(p, "and"); at = here(p)) n = new_node(p, AND, at, n, parse_not(p));
    return n;
}

static node *parse_or(parser *p) {
    node *n = parse_and(p);
    for (size_t at = here(p); take_name(p, "or"); at = here(p)) n = new_node(p, OR, at, n, parse_and(p));
    return n;
}

static node *parse_expression(parser *p) {
    if (++p->nesting > MAX_NESTING)
        tv_tree_fail(p->tree, TV_EUNSUPPORTED, here(p), "nests deeper than %d levels", MAX_NESTING);
    node *n = parse_or(p);
    for (size_t at = here(p); take_name(p, "if"); at = here(p)) {
        n = new_node(p, CHOICE, at, n, parse_or(p));
        if (take_name(p, "else")) n->c = parse_expression(p);
    }
    p->nesting--;
    return n;
}

static node *parse_block(parser *p);

/* Behind "if" or "elif", up to and with the closing endif. */
static node *parse_if(parser *p, size_t at) {
    node *n = new_node(p, IF, at, parse_expression(p), NULL);
    expect_close(p);
    n->b = parse_block(p);
    size_t branch = here(p);
    if (take_name(p, "elif")) {
        if (++p->nesting > MAX_NESTING)
            tv_tree_fail(p->tree, TV_EUNSUPPORTED, at, "nests deeper than %d levels", MAX_NESTING);
        n->c = parse_if(p, branch);
        p->nesting--;
        return n;
    }
    if (take_name(p, "else")) {
        expect_close(p);
        n->c = parse_block(p);
    }
    expect_name(p, "endif");
    expect_close(p);
    return n;
}

static node *parse_for(parser *p, size_t at) {
    node *n = new_node(p, FOR, at, NULL, NULL);
    n->v = take_any_name(p, "a name");
    if (at_operator(p, ",")) tv_tree_unsupported(p->tree, at, "a loop over several names", "", 0);
    expect_name(p, "in");
    n->a = parse_or(p); /* not a choice: "if" filters what is looped over */
    if (at_name(p, "if") || at_name(p, "recursive"))
        tv_tree_unsupported(p->tree, at, "a loop with", peek(p)->s, peek(p)->n);
    expect_close(p);
    n->b = parse_block(p);
    if (at_name(p, "else")) tv_tree_unsupported(p->tree, at, "a loop with", "else", 4);
    expect_name(p, "endfor");
    expect_close(p);
    return n;
}

static node *parse_set(parser *p, size_t at) {
    node *n = new_node(p, SET, at, NULL, NULL);
    n->v = take_any_name(p, "a name");
    if (take_operator(p, ".")) {
        n->b = new_node(p, NAME, at, NULL, NULL);
        n->b->v = n->v;
        n->v = take_any_name(p, "an attribute");
    }
    if (!at_operator(p, "=")) tv_tree_unsupported(p->tree, at, "a set of another form than name = value", "", 0);
    expect_operator(p, "=");
    n->a = parse_expression(p);
    expect_close(p);
    return n;
}

/* Statements up to a tag that only an enclosing one can take: its keyword is then the next token. */
static node *parse_block(parser *p) {
    static const char *const closers[] = {"elif", "else", "endif", "endfor"};
    node *first = NULL, **last = &first;
    if (++p->nesting > MAX_NESTING)
        tv_tree_fail(p->tree, TV_EUNSUPPORTED, here(p), "nests deeper than %d levels", MAX_NESTING);
    while (p->tree->status == TV_OK && p->next < p->n_tokens) {
        const token *t = peek(p);
        size_t at = t->at;
        node *n = NULL;
        p->next++;
        p->parts = 0;
        if (t->kind == T_TEXT) {
            n = new_node(p, TEXT, at, NULL, NULL);
            n->v = string_of(t->s, t->n);
        } else if (t->kind == T_OPEN_PRINT) {
            n = new_node(p, PRINT, at, parse_expression(p), NULL);
            if (peek(p)->kind == T_CLOSE_PRINT)
                p->next++;
            else
                unexpected(p, "}}");
        } else {
            for (size_t i = 0; i < sizeof closers / sizeof *closers; i++)
                if (at_name(p, closers[i])) {
                    p->nesting--;
                    return first;
                }
            if (take_name(p, "if"))
                n = parse_if(p, at);
            else if (take_name(p, "for"))
                n = parse_for(p, at);
            else if (take_name(p, "set"))
                n = parse_set(p, at);
            else
                tv_tree_unsupported(p->tree, at, "the statement", peek(p)->s, peek(p)->n);
        }
        if (!n) break;
        *last = n;
        last = &n->next;
    }
    p->nesting--;
    return first;
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

/* Jinja reads every kind of line end as a newline, and drops one at the end of the template. */
static void copy_source(tree *t, const char *source) {
    size_t size = strlen(source);
    t->source = tv_xmalloc(size + 3); /* three NULs: what looks ahead needs no length */
    for (size_t i = 0; i < size; i++) {
        char c = source[i];
        if (c == '\r' && source[i + 1] == '\n') continue;
        t->source[t->size++] = c == '\r' ? '\n' : c;
    }
    if (t->size && t->source[t->size - 1] == '\n') t->size--;
    memset(t->source + t->size, 0, 3);
}

void tv_tree_parse(tree *t, const char *source, tv_err *err) {
    *t = (tree){.err = err};
    if (strlen(source) > MAX_SOURCE) {
        tv_tree_fail(t, TV_EUNSUPPORTED, 0, "has more than %d bytes", MAX_SOURCE);
        return;
    }
    copy_source(t, source);
    parser p = {.tree = t};
    lex(&p);
    for (size_t i = 0; i < p.n_tokens; i++)
        t->has_flag |= p.tokens[i].kind == T_NAME && tv_tree_is(p.tokens[i].s, p.tokens[i].n, "enable_thinking");
    t->root = parse_block(&p);
    if (p.next < p.n_tokens) unexpected(&p, "the end");
    free(p.tokens);
}
