/* The pre-tokenizer's regular expression: Hugging Face's engine is Oniguruma, ours PCRE2; this is where they are made
 * to mean the same. */
#ifndef TV_SPLIT_H
#define TV_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tv_split tv_split;

/* Compiles pattern (UTF-8, Oniguruma syntax), with just-in-time compilation where the machine has it. Only constructs
 * that mean the same in both engines pass: literals, escaped punctuation, \r \n \t \f \v, \s \S \d \D, \p{..} \P{..} of
 * general categories, classes, ( ) (?: ) (?i: ) (?= ) (?! ) (?> ), | and quantifiers. \s is spelled out as Unicode's
 * White_Space (PCRE2's own adds U+180E). Anything else (\w, \b, \h, anchors, dot, back references, flags, class
 * operators) is TV_EUNSUPPORTED, naming it; so is a pattern that can match nothing. name goes into messages. */
TV_NODISCARD tv_status tv_split_open(const char *pattern, const char *name, tv_split **out, tv_err *err);
void tv_split_close(tv_split *split);

/* Ends of pieces, growing; zero-initialise it. */
typedef struct {
    size_t *ends; /* [n] ascending offsets; owned */
    size_t n, capacity;
} tv_pieces;
void tv_pieces_free(tv_pieces *pieces);
TV_NODISCARD tv_status tv_pieces_add(tv_pieces *pieces, size_t end, tv_err *err);

/* Scratch of one caller for matching. */
typedef struct tv_split_scratch tv_split_scratch;
TV_NODISCARD tv_status tv_split_scratch_open(tv_split_scratch **out, tv_err *err);
void tv_split_scratch_close(tv_split_scratch *scratch);

/* "Isolated": appends the ends of the pieces of well-formed text[0..size), matches and what lies between them, each
 * offset by base. A search that takes more steps than a length-proportional limit ends in TV_EUNSUPPORTED, never in a
 * hang. */
TV_NODISCARD tv_status tv_split_run(const tv_split *split, tv_split_scratch *scratch, const char *text, size_t size,
                                    size_t base, tv_pieces *pieces, tv_err *err);

#endif
