/* The models once more, in f64 and in the plainest way: what the engine's logits are compared with. Shares the reading
 * of configurations and the rope frequencies with the engine, and no arithmetic. */
#ifndef TV_REFERENCE_MODEL_H
#define TV_REFERENCE_MODEL_H

#include "models/config.h"
#include "traces/safetensors.h"

typedef struct {
    tv_config config;
    tv_st_file *file;
    int bf16_frequencies; /* 1: rope frequencies rounded to bf16, as torch rounds them when a model is cast as a whole
                           */
} reference_model;

/* Checkpoint folders with one bf16 model.safetensors and one tensor per expert. Aborts on failure. */
void reference_open(const char *dir, reference_model *m);
void reference_close(reference_model *m);

/* Logits of one sequence: ids [T] -> logits [T,V]. routes: NULL, or [L,T,used] experts of the sparse layers: taken from
 * there when forced, else written there in descending order of probability. margins: NULL, or [L,T]: by how much the
 * router probability of the last expert chosen lies above that of the first one left out (sparse layers). */
void reference_logits(const reference_model *m, const int32_t *ids, int T, int forced, int32_t *routes, double *margins,
                      double *logits);

#endif
