/* Where two sides begin to differ: instances whose first differing position is known. */
#include "estimator/onset.h"

#include <math.h>
#include <string.h>

#include "estimator/synthetic.h"
#include "tests/check.h"

static tv_onset onset(const tv_dataset *data, int64_t reads) {
    tv_onset o = {0};
    tv_err err = {0};
    CHECK_OK(tv_onset_run(data, reads, (tv_readout){0}, &o, &err), &err);
    return o;
}

/* The hard instance's sides agree on everything but the last bit: found there, with exact reads and with noisy ones,
 * which differ at every position but not by more than from themselves. */
static void last_position(void) {
    tv_chain hard;
    tv_err err = {0};
    CHECK_OK(tv_chain_hard(&hard, &err), &err);
    tv_oracle oracle[2] = {{.kind = TV_ORACLE_EXACT, .seed = 3}, {.kind = TV_ORACLE_GAUSS, .sigma = 0.05, .seed = 3}};
    for (int noisy = 0; noisy < 2; noisy++) {
        tv_dataset *data = NULL;
        CHECK_OK(tv_chain_record(&hard, &oracle[noisy], 0, 40, noisy ? 4 : 1, &data, &err), &err);
        tv_onset o = onset(data, noisy ? 4 : 2);
        CHECK_INT(o.first, hard.n - 1);
        CHECK(o.tv > 0.1 && (noisy ? o.floor > 0 && o.floor < o.tv / 2 && o.z > TV_ONSET_Z : o.floor == 0));
        CHECK_INT(o.reads, noisy ? 2 : 1);
        if (noisy) CHECK_FAILS(tv_onset_run(data, 1, (tv_readout){0}, &o, &err), TV_EARG, &err, "one read a side");
        tv_chain_record_free(data);
    }
    tv_chain_free(&hard);
}

/* A side against another of the same distribution differs nowhere. */
static void nowhere(void) {
    tv_markov_options options = {.n = 40, .contexts = 8, .topics = 2, .k = 5, .delta = 1e-9, .seed = 1};
    tv_chain chain;
    tv_err err = {0};
    CHECK_OK(tv_chain_markov(&options, &chain, &err), &err);
    tv_oracle oracle = {.kind = TV_ORACLE_HEAVY, .sigma = 0.05, .seed = 9};
    tv_dataset *data = NULL;
    CHECK_OK(tv_chain_record(&chain, &oracle, 0, 30, 4, &data, &err), &err);
    CHECK_INT(onset(data, 4).first, -1);
    tv_chain_record_free(data);
    tv_chain_free(&chain);
}

/* Sides and sets may store different numbers of slots: room is made for the most. Side a over set a is uniform over 40
 * tokens, all else is a fair coin between two of them. */
static void unequal_slots(void) {
    enum { V = 40 };
    int32_t tokens[1] = {0}, ids[V];
    float wide[V], coin[2] = {logf(0.5f), logf(0.5f)};
    for (int j = 0; j < V; j++) ids[j] = j, wide[j] = logf(1.0f / V);
    const int32_t *id_list[1] = {ids};
    const float *wide_list[1] = {wide}, *coin_list[1] = {coin};
    tv_dataset data = {.n = 1, .temperature = 1, .deterministic = {1, 1}};
    for (int s = 0; s < 2; s++)
        data.set[s] = (tv_set){.N = 1,
                               .tokens = tokens,
                               .reads = {1, 1},
                               .k = {s ? 2 : V, 2},
                               .ids = {id_list, id_list},
                               .lps = {s ? coin_list : wide_list, coin_list}};
    const tv_onset o = onset(&data, 2);
    CHECK_INT(o.first, 0);
    CHECK_NEAR(o.tv, 0.5 * (1 - 2.0 / V), 1e-6);
    CHECK_NEAR(o.floor, 0, 0);
}

static const tv_test tests[] = {
    {"last_position", last_position}, {"nowhere", nowhere}, {"unequal_slots", unequal_slots}};
TV_TEST_MAIN(tests)
