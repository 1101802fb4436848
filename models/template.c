#include "models/template.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "models/template_tree.h"
#include "models/unicode.h"

enum { MAX_STEPS = 4 << 20, MAX_MEMORY = 256 << 20 };

typedef struct {
    tree *tree;
    entry *variables; /* innermost first */
    entry *scope;     /* what was innermost when the scope began */
    long steps;
    char *out;
    size_t out_size, out_room;
} run;

static const value undefined = {.type = UNDEFINED};

/* Memory whose size the template decides: NULL and a failure when it is too much. */
static void *allocate_some(run *r, size_t size) {
    if (size <= MAX_MEMORY && r->tree->allocated <= MAX_MEMORY - size) return tv_tree_allocate(r->tree, size);
    tv_tree_fail(r->tree, TV_EUNSUPPORTED, 0, "needs more than %d MiB", MAX_MEMORY >> 20);
    return NULL;
}

static int equal_strings(value a, value b) { return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n)); }

/* ---- Evaluation ------------------------------------------------------------------------------------------------- */

static value evaluate(run *r, const node *n);

static int truth(value v) {
    switch (v.type) {
    case UNDEFINED:
    case NONE:
        return 0;
    case BOOLEAN:
    case INTEGER:
        return v.i != 0;
    case STRING:
    case LIST:
        return v.n > 0;
    case DICT:
        return v.writable || *v.entries;
    case LOOP:
        return 1;
    }
    return 0;
}

static const char *type_name(value v) {
    static const char *const names[] = {"an undefined value", "none",   "a boolean", "a number",
                                        "a string",           "a list", "a mapping", "a loop"};
    return names[v.type];
}

static value wrong(run *r, const node *n, const char *what, value v) {
    tv_tree_fail(r->tree, TV_EUNSUPPORTED, n->at, "%s %s, which is not supported", what, type_name(v));
    return undefined;
}

static entry *find(entry *list, const entry *end, value name) {
    for (; list != end; list = list->next)
        if (list->size == name.n && (!name.n || !memcmp(list->name, name.s, name.n))) return list;
    return NULL;
}

static void bind(run *r, entry **list, const entry *end, value name, value v) {
    entry *e = find(*list, end, name);
    if (!e) {
        e = allocate_some(r, sizeof *e);
        if (!e) return;
        *e = (entry){name.s, name.n, v, *list};
        *list = e;
    }
    e->v = v;
}

/* A value as Jinja prints it. */
static value text_of(run *r, const node *n, value v) {
    if (v.type == STRING) return v;
    if (v.type == UNDEFINED) return string_of("", 0);
    if (v.type == NONE) return string_of("None", 4);
    if (v.type == BOOLEAN) return v.i ? string_of("True", 4) : string_of("False", 5);
    if (v.type != INTEGER) return wrong(r, n, "prints", v);
    char *s = allocate_some(r, 24);
    return s ? string_of(s, (size_t)snprintf(s, 24, "%lld", (long long)v.i)) : undefined;
}

static int same(value a, value b) {
    int numbers = (a.type == BOOLEAN || a.type == INTEGER) && (b.type == BOOLEAN || b.type == INTEGER);
    if (numbers) return a.i == b.i;
    if (a.type != b.type) return 0;
    if (a.type == STRING) return equal_strings(a, b);
    return a.type == UNDEFINED || a.type == NONE;
}

static value concatenate(run *r, value a, value b) {
    char *s = allocate_some(r, a.n + b.n);
    if (!s) return undefined;
    if (a.n) memcpy(s, a.s, a.n);
    if (b.n) memcpy(s + a.n, b.s, b.n);
    return string_of(s, a.n + b.n);
}

static int contains(run *r, const node *n, value item, value in) {
    if (in.type == UNDEFINED) return 0;
    if (in.type == STRING && item.type == STRING) return !item.n || memmem(in.s, in.n, item.s, item.n) != NULL;
    if (in.type == DICT && item.type == STRING) return find(*in.entries, NULL, item) != NULL;
    if (in.type == LIST) {
        for (size_t i = 0; i < in.n; i++)
            if (same(item, in.items[i])) return 1;
        return 0;
    }
    wrong(r, n, "looks for something in", in);
    return 0;
}

static int is_structure(value v) { return v.type == LIST || v.type == DICT || v.type == LOOP; }

static value binary(run *r, const node *n) {
    value a = evaluate(r, n->a), b = evaluate(r, n->b);
    if (r->tree->status != TV_OK) return undefined;
    if (n->op == 'i' || n->op == 'n') return boolean(contains(r, n, a, b) == (n->op == 'i'));
    if (n->op == '=' || n->op == '!') {
        if (is_structure(a) && is_structure(b)) return wrong(r, n, "compares", a);
        return boolean(same(a, b) == (n->op == '='));
    }
    if (n->op == '~') {
        a = text_of(r, n, a), b = text_of(r, n, b);
        return r->tree->status == TV_OK ? concatenate(r, a, b) : undefined;
    }
    if (n->op == '+' && a.type == STRING && b.type == STRING) return concatenate(r, a, b);
    if (a.type != INTEGER) return wrong(r, n, "computes with", a);
    if (b.type != INTEGER) return wrong(r, n, "computes with", b);
    int64_t result = 0;
    switch (n->op) {
    case '<':
        return boolean(a.i < b.i);
    case '>':
        return boolean(a.i > b.i);
    case 'l':
        return boolean(a.i <= b.i);
    case 'g':
        return boolean(a.i >= b.i);
    case '+':
        result = a.i + b.i;
        break;
    case '-':
        result = a.i - b.i;
        break;
    case '*':
        result = a.i * b.i;
        break;
    default: /* %, with the sign of the divisor */
        if (b.i == 0) {
            tv_tree_fail(r->tree, TV_EFORMAT, n->at, "divides by zero");
            return undefined;
        }
        result = a.i % b.i;
        if (result && (result < 0) != (b.i < 0)) result += b.i;
    }
    if (result < -INT32_MAX || result > INT32_MAX) { /* operands this small cannot overflow in the next step */
        tv_tree_fail(r->tree, TV_EUNSUPPORTED, n->at, "computes with numbers beyond 32 bits");
        return undefined;
    }
    return integer(result);
}

static value attribute(run *r, const node *n, value of, value name) {
    if (of.type == DICT) {
        const entry *e = find(*of.entries, NULL, name);
        return e ? e->v : undefined;
    }
    if (of.type == LOOP) {
        int64_t i = of.i, count = (int64_t)of.n;
        if (tv_tree_is(name.s, name.n, "index")) return integer(i + 1);
        if (tv_tree_is(name.s, name.n, "index0")) return integer(i);
        if (tv_tree_is(name.s, name.n, "revindex")) return integer(count - i);
        if (tv_tree_is(name.s, name.n, "revindex0")) return integer(count - i - 1);
        if (tv_tree_is(name.s, name.n, "first")) return boolean(i == 0);
        if (tv_tree_is(name.s, name.n, "last")) return boolean(i + 1 == count);
        if (tv_tree_is(name.s, name.n, "length")) return integer(count);
        if (tv_tree_is(name.s, name.n, "previtem")) return i ? of.items[i - 1] : undefined;
        if (tv_tree_is(name.s, name.n, "nextitem")) return i + 1 < count ? of.items[i + 1] : undefined;
    }
    if (of.type == UNDEFINED) {
        tv_tree_fail(r->tree, TV_EFORMAT, n->at, "asks an undefined value for %.*s", (int)(name.n < 60 ? name.n : 60),
                     name.s);
        return undefined;
    }
    tv_tree_unsupported(r->tree, n->at, "the attribute", name.s, name.n);
    return undefined;
}

static value item(run *r, const node *n) {
    value of = evaluate(r, n->a), at = evaluate(r, n->b);
    if (r->tree->status != TV_OK) return undefined;
    if (at.type == STRING && of.type == DICT) return attribute(r, n, of, at);
    if (of.type != LIST || at.type != INTEGER) return wrong(r, n, "takes an item of", of);
    int64_t i = at.i < 0 ? at.i + (int64_t)of.n : at.i;
    return i >= 0 && i < (int64_t)of.n ? of.items[i] : undefined;
}

/* A bound of a slice: absent, or counted from the end when negative, then kept within [low, high]. */
static int64_t bound(run *r, const node *n, int64_t size, int64_t low, int64_t high, int64_t absent) {
    value v = n ? evaluate(r, n) : (value){.type = NONE};
    if (v.type == NONE) return absent;
    if (v.type != INTEGER) {
        wrong(r, n, "slices by", v);
        return absent;
    }
    int64_t i = v.i < 0 ? v.i + size : v.i;
    return i < low ? low : i > high ? high : i;
}

static value slice(run *r, const node *n) {
    value of = evaluate(r, n->a), by = n->d ? evaluate(r, n->d) : integer(1);
    if (r->tree->status != TV_OK) return undefined;
    if (of.type != LIST) return wrong(r, n, "slices", of);
    if (by.type != INTEGER || by.i == 0) return wrong(r, n, "slices by a step of", by);
    int64_t size = (int64_t)of.n, down = by.i < 0, high = size - down;
    int64_t from = bound(r, n->b, size, -down, high, down ? high : 0),
            to = bound(r, n->c, size, -down, high, down ? -1 : size);
    value *items = allocate_some(r, (of.n + 1) * sizeof *items);
    if (!items) return undefined;
    size_t count = 0;
    for (int64_t i = from; down ? i > to : i < to; i += by.i) items[count++] = of.items[i];
    return (value){.type = LIST, .items = items, .n = count};
}

/* Python's strip: of white space, or of the characters of set. */
static value strip(run *r, const node *n, value s, int left, int right, const value *set) {
    for (size_t i = 0; set && i < set->n; i++)
        if ((unsigned char)set->s[i] >= 0x80) return wrong(r, n, "strips characters beyond ASCII of", s);
    while (s.n && (left || right)) {
        size_t at = 0, size = 1;
        if (!left)
            for (at = s.n - 1; at && ((unsigned char)s.s[at] & 0xC0) == 0x80; at--) {}
        uint32_t c = 0;
        size = tv_utf8_char(s.s + at, s.n - at, &c, NULL);
        int goes = !size ? 0
                   : set ? c < 0x80 && set->n && memchr(set->s, (int)c, set->n) != NULL
                         : tv_is_white_space(c) || (c >= 0x1C && c <= 0x1F);
        if (goes)
            s = left ? string_of(s.s + size, s.n - size) : string_of(s.s, at);
        else if (left)
            left = 0;
        else
            right = 0;
    }
    return s;
}

static value split(run *r, const node *n, value s, value by) {
    if (!by.n) return wrong(r, n, "splits at nothing", s);
    size_t count = 1, i = 0;
    const char *at = s.s, *end = s.s + s.n, *found;
    for (; (found = memmem(at, (size_t)(end - at), by.s, by.n)); at = found + by.n) count++;
    value *items = allocate_some(r, count * sizeof *items);
    if (!items) return undefined;
    for (at = s.s; (found = memmem(at, (size_t)(end - at), by.s, by.n)); at = found + by.n)
        items[i++] = string_of(at, (size_t)(found - at));
    items[i] = string_of(at, (size_t)(end - at));
    return (value){.type = LIST, .items = items, .n = count};
}

static value method(run *r, const node *n, value s, value name, const value *argument, size_t n_arguments) {
    int left = tv_tree_is(name.s, name.n, "lstrip"), right = tv_tree_is(name.s, name.n, "rstrip"),
        both = tv_tree_is(name.s, name.n, "strip");
    if (s.type == STRING && (n_arguments == 0 || (n_arguments == 1 && argument->type == STRING))) {
        if (left || right || both) return strip(r, n, s, left || both, right || both, n_arguments ? argument : NULL);
        if (n_arguments && tv_tree_is(name.s, name.n, "split")) return split(r, n, s, *argument);
        if (n_arguments && tv_tree_is(name.s, name.n, "startswith"))
            return boolean(s.n >= argument->n && equal_strings(string_of(s.s, argument->n), *argument));
        if (n_arguments && tv_tree_is(name.s, name.n, "endswith"))
            return boolean(s.n >= argument->n &&
                           equal_strings(string_of(s.s + s.n - argument->n, argument->n), *argument));
    }
    tv_tree_unsupported(r->tree, n->at, "the method", name.s, name.n);
    return undefined;
}

static value call(run *r, const node *n) {
    if (n->a->kind == NAME && tv_tree_is(n->a->v.s, n->a->v.n, "namespace")) {
        value space = {.type = DICT, .writable = 1, .entries = tv_tree_allocate(r->tree, sizeof(entry *))};
        for (const node *argument = n->b; argument; argument = argument->next) {
            if (argument->key.type != STRING) tv_tree_unsupported(r->tree, n->at, "a namespace of a mapping", "", 0);
            bind(r, space.entries, NULL, argument->key, evaluate(r, argument->a));
        }
        return space;
    }
    value arguments[1] = {undefined};
    size_t count = 0;
    for (const node *argument = n->b; argument; argument = argument->next) {
        if (argument->key.type != UNDEFINED || count == 1) {
            tv_tree_unsupported(r->tree, n->at, "a call with named or several arguments", "", 0);
            return undefined;
        }
        arguments[count++] = evaluate(r, argument->a);
    }
    if (n->a->kind == ATTRIBUTE) {
        value of = evaluate(r, n->a->a);
        return r->tree->status == TV_OK ? method(r, n, of, n->a->v, arguments, count) : undefined;
    }
    if (n->a->kind == NAME && tv_tree_is(n->a->v.s, n->a->v.n, "raise_exception")) {
        value why = text_of(r, n, arguments[0]);
        tv_tree_fail(r->tree, TV_EARG, n->at, "refuses these messages: %.*s", (int)(why.n < 300 ? why.n : 300),
                     why.n ? why.s : "");
    } else if (n->a->kind == NAME) {
        tv_tree_unsupported(r->tree, n->at, "the function", n->a->v.s, n->a->v.n);
    } else {
        tv_tree_unsupported(r->tree, n->at, "a call of something that is not a name", "", 0);
    }
    return undefined;
}

static value filter(run *r, const node *n) {
    value v = evaluate(r, n->a);
    if (r->tree->status != TV_OK) return undefined;
    if (tv_tree_is(n->v.s, n->v.n, "default") && n->b && !n->b->next && n->b->key.type == UNDEFINED)
        return v.type == UNDEFINED ? evaluate(r, n->b->a) : v;
    if (!n->b && (tv_tree_is(n->v.s, n->v.n, "length") || tv_tree_is(n->v.s, n->v.n, "count"))) {
        size_t count = v.n;
        if (v.type == STRING)
            for (size_t i = 0; i < v.n; i++) count -= ((unsigned char)v.s[i] & 0xC0) == 0x80;
        return v.type == STRING || v.type == LIST ? integer((int64_t)count) : wrong(r, n, "measures", v);
    }
    if (!n->b && tv_tree_is(n->v.s, n->v.n, "trim"))
        return v.type == STRING ? strip(r, n, v, 1, 1, NULL) : wrong(r, n, "trims", v);
    tv_tree_unsupported(r->tree, n->at, "the filter", n->v.s, n->v.n);
    return undefined;
}

static value test(run *r, const node *n) {
    value v = evaluate(r, n->a);
    static const struct {
        const char *name;
        unsigned types; /* bit mask */
    } tests[] = {{"undefined", 1u << UNDEFINED},
                 {"none", 1u << NONE},
                 {"boolean", 1u << BOOLEAN},
                 {"string", 1u << STRING},
                 {"mapping", 1u << DICT},
                 {"integer", 1u << INTEGER},
                 {"number", 1u << INTEGER | 1u << BOOLEAN}};
    if (tv_tree_is(n->v.s, n->v.n, "defined")) return boolean(v.type != UNDEFINED);
    if (tv_tree_is(n->v.s, n->v.n, "true")) return boolean(v.type == BOOLEAN && v.i);
    if (tv_tree_is(n->v.s, n->v.n, "false")) return boolean(v.type == BOOLEAN && !v.i);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (tv_tree_is(n->v.s, n->v.n, tests[i].name)) return boolean(tests[i].types >> v.type & 1);
    tv_tree_unsupported(r->tree, n->at, "the test", n->v.s, n->v.n);
    return undefined;
}

static value name(run *r, const node *n) {
    const entry *e = find(r->variables, NULL, n->v);
    if (e) return e->v;
    /* transformers gives templates the special tokens by name; they are not known here, and nothing must not stand in
     */
    if (n->v.n > 6 && !memcmp(n->v.s + n->v.n - 6, "_token", 6))
        tv_tree_unsupported(r->tree, n->at, "the variable", n->v.s, n->v.n);
    return undefined;
}

static value evaluate(run *r, const node *n) {
    if (r->tree->status != TV_OK) return undefined;
    if (++r->steps > MAX_STEPS) {
        tv_tree_fail(r->tree, TV_EUNSUPPORTED, n->at, "takes more than %d steps", MAX_STEPS);
        return undefined;
    }
    value v;
    switch (n->kind) {
    case CONSTANT:
        return n->v;
    case NAME:
        return name(r, n);
    case ATTRIBUTE:
        v = evaluate(r, n->a);
        return r->tree->status == TV_OK ? attribute(r, n, v, n->v) : undefined;
    case ITEM:
        return item(r, n);
    case SLICE:
        return slice(r, n);
    case CALL:
        return call(r, n);
    case FILTER:
        return filter(r, n);
    case TEST:
        return test(r, n);
    case NOT:
        return boolean(!truth(evaluate(r, n->a)));
    case NEGATE:
        v = evaluate(r, n->a);
        return v.type == INTEGER ? integer(-v.i) : wrong(r, n, "negates", v);
    case AND:
        v = evaluate(r, n->a);
        return truth(v) ? evaluate(r, n->b) : v;
    case OR:
        v = evaluate(r, n->a);
        return truth(v) ? v : evaluate(r, n->b);
    case CHOICE:
        if (truth(evaluate(r, n->b))) return evaluate(r, n->a);
        return n->c ? evaluate(r, n->c) : undefined;
    case BINARY:
        return binary(r, n);
    default:
        TV_ASSERT(!"an expression");
        return undefined;
    }
}

static void print(run *r, value v) {
    if (r->out_size + v.n + 1 > r->out_room) {
        if (v.n > MAX_MEMORY - r->out_size) {
            tv_tree_fail(r->tree, TV_EUNSUPPORTED, 0, "writes more than %d MiB", MAX_MEMORY >> 20);
            return;
        }
        r->out = tv_xrealloc(r->out, r->out_room = 2 * r->out_room + v.n + 256);
    }
    if (v.n) memcpy(r->out + r->out_size, v.s, v.n);
    r->out[r->out_size += v.n] = 0;
}

static void execute(run *r, const node *n);

/* Names set in an iteration end with it. */
static void loop(run *r, const node *n) {
    value over = evaluate(r, n->a);
    if (r->tree->status != TV_OK || over.type == UNDEFINED) return;
    if (over.type != LIST) {
        wrong(r, n, "loops over", over);
        return;
    }
    entry *variables = r->variables, *scope = r->scope;
    entry of = {n->v.s, n->v.n, undefined, variables};
    entry state = {"loop", 4, {.type = LOOP, .items = over.items, .n = over.n}, &of};
    for (size_t i = 0; i < over.n && r->tree->status == TV_OK; i++) {
        r->scope = variables;
        r->variables = &state;
        of.v = over.items[i];
        state.v.i = (int64_t)i;
        execute(r, n->b);
        r->variables = variables;
    }
    r->scope = scope;
}

static void set(run *r, const node *n) {
    value v = evaluate(r, n->a);
    if (r->tree->status != TV_OK) return;
    if (!n->b) {
        bind(r, &r->variables, r->scope, n->v, v);
        return;
    }
    value space = evaluate(r, n->b);
    if (space.type == DICT && space.writable)
        bind(r, space.entries, NULL, n->v, v);
    else
        wrong(r, n, "sets an attribute of", space);
}

static void execute(run *r, const node *n) {
    for (; n && r->tree->status == TV_OK; n = n->next) {
        if (++r->steps > MAX_STEPS)
            tv_tree_fail(r->tree, TV_EUNSUPPORTED, n->at, "takes more than %d steps", MAX_STEPS);
        value v;
        switch (n->kind) {
        case TEXT:
            print(r, n->v);
            break;
        case PRINT:
            v = evaluate(r, n->a);
            if (r->tree->status == TV_OK) v = text_of(r, n, v);
            if (r->tree->status == TV_OK) print(r, v);
            break;
        case IF:
            execute(r, truth(evaluate(r, n->a)) ? n->b : n->c);
            break;
        case FOR:
            loop(r, n);
            break;
        default:
            set(r, n);
        }
    }
}

/* ---- The whole -------------------------------------------------------------------------------------------------- */

static void define(run *r, const char *name, value v) {
    bind(r, &r->variables, NULL, string_of(name, strlen(name)), v);
}

static void define_all(run *r, const tv_message *messages, size_t n, tv_thinking thinking) {
    value *list = tv_tree_allocate(r->tree, n * sizeof *list);
    for (size_t i = 0; i < n; i++) {
        list[i] = (value){.type = DICT, .entries = tv_tree_allocate(r->tree, sizeof(entry *))};
        bind(r, list[i].entries, NULL, string_of("role", 4), string_of(messages[i].role, strlen(messages[i].role)));
        bind(r, list[i].entries, NULL, string_of("content", 7),
             string_of(messages[i].content, strlen(messages[i].content)));
    }
    define(r, "messages", (value){.type = LIST, .items = list, .n = n});
    define(r, "add_generation_prompt", boolean(1));
    define(r, "tools", (value){.type = NONE});
    define(r, "documents", (value){.type = NONE});
    if (thinking != TV_THINKING_DEFAULT) define(r, "enable_thinking", boolean(thinking == TV_THINKING_ON));
}

tv_status tv_template_render(const char *source, const tv_message *messages, size_t n_messages, tv_thinking thinking,
                             char **text, int *has_flag, tv_err *err) {
    *text = NULL;
    tree t;
    tv_tree_parse(&t, source, err);
    run r = {.tree = &t};
    define_all(&r, messages, n_messages, thinking);
    print(&r, string_of("", 0));
    execute(&r, t.root);
    *has_flag = t.has_flag;
    if (t.status == TV_OK)
        *text = r.out;
    else
        free(r.out);
    tv_tree_free(&t);
    return t.status;
}
