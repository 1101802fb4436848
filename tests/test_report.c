/* The report: its keys and their meanings, the headline's rules, degenerate data, and its two printed forms. */
#include "estimator/report.h"

#include <ctype.h>
#include <math.h>
#include <omp.h>

#include "estimator/agreement.h"
#include "estimator/hedged.h"
#include "estimator/report_view.h"
#include "estimator/synthetic.h"
#include "tests/check.h"
#include "tests/estimator_fixture.h"
#include "tests/report_keys.h"

static double number(const cJSON *r, const char *path) { return tv_view_number(r, path); }

/* No number is NaN or infinite, every null has its reason beside it, every interval holds its estimate. */
static void check_sound(const cJSON *o) {
    for (const cJSON *c = o->child; c; c = c->next) {
        if (cJSON_IsNumber(c)) CHECK(isfinite(c->valuedouble));
        if (cJSON_IsNull(c) && cJSON_IsObject(o)) {
            char reason[80];
            snprintf(reason, sizeof reason, "%s_reason", c->string);
            const cJSON *why = cJSON_GetObjectItem(o, reason);
            if (!CHECK(cJSON_IsString(why) && strlen(why->valuestring) > 3))
                fprintf(stderr, "      at %s\n", c->string);
        }
        if (c->string && strcmp(c->string, "ci95") == 0 && cJSON_IsArray(c)) {
            double at = number(o, "estimate"), low = cJSON_GetArrayItem(c, 0)->valuedouble,
                   high = cJSON_GetArrayItem(c, 1)->valuedouble;
            CHECK(low <= at && at <= high);
        }
        if (cJSON_IsObject(c) || cJSON_IsArray(c)) check_sound(c);
    }
}

static cJSON *build(const tv_dataset *data, tv_report_options o) {
    tv_err err = {0};
    cJSON *r = NULL;
    if (!CHECK_OK(tv_report_build(data, &o, &r, &err), &err)) return NULL;
    check_sound(r);
    char *text = tv_json_text(r);
    CHECK(!strstr(text, "nan") && !strstr(text, "inf,") && !strstr(text, "NaN"));
    free(text);
    return r;
}

/* Prints the text and checks that a terminal can show it. The caller frees. */
static char *printed(const cJSON *r) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    tv_report_print(r, f);
    fclose(f);
    int column = 0;
    for (const char *c = text; *c; c++) {
        column = *c == '\n' ? 0 : column + 1;
        if (!CHECK(column <= 100) || !CHECK(*c == '\n' || (*c >= 32 && *c < 127))) break;
        if (c[0] == '\n' && c > text) CHECK(c[-1] != ' ');
    }
    const char *at = text;
    for (int q = 0; q < TV_ANSWERS; q++) {
        at = strstr(at, tv_view_questions[q]);
        if (!CHECK(at != NULL)) break;
    }
    return text;
}

/* Every key that must stay is there, with the golden values. */
static void test_keys(void) {
    fixture f;
    if (!fixture_open(&f, "g3_mismatch", "g3_mismatch.expected.json", "pi", "mu")) return;
    cJSON *r = build(&f.set, (tv_report_options){.serving_order = 1});
    if (!r) return;
    for (int i = 0; i < N_REPORT_KEYS; i++)
        if (!CHECK(tv_view_item(r, report_keys[i]) != NULL)) fprintf(stderr, "      missing: %s\n", report_keys[i]);
    const cJSON *want = fixture_at(f.expected, "renorm/plugin/8"),
                *hedged = fixture_at(f.expected, "renorm/hedged/8/auto");
    CHECK_INT(number(r, "n"), 24);
    CHECK_INT(number(r, "N_a"), 16);
    CHECK_INT(number(r, "N_b"), 14);
    CHECK_INT(number(r, "R"), 8);
    CHECK_NEAR(number(r, "estimators.plugin.estimate"), fixture_at(want, "tv_sym")->valuedouble, 1e-12);
    CHECK_NEAR(number(r, "estimators.plugin.one_sided_a"), fixture_at(want, "pi/tv")->valuedouble, 1e-12);
    CHECK_NEAR(number(r, "estimators.plugin.mismatch"), fixture_at(want, "mismatch_sym")->valuedouble, 1e-12);
    CHECK_NEAR(number(r, "estimators.plugin.shared"),
               number(r, "estimators.plugin.estimate") - number(r, "estimators.plugin.mismatch"), 1e-12);
    CHECK_NEAR(number(r, "estimators.hedged.estimate"), fixture_at(hedged, "T2pj_sym/est")->valuedouble, 1e-9);
    CHECK_NEAR(number(r, "estimators.hedged.se"), fixture_at(hedged, "T2pj_sym/se")->valuedouble, 1e-9);
    CHECK_NEAR(number(r, "estimators.hedged.T0"), fixture_at(hedged, "T0_sym/est")->valuedouble, 1e-9);
    CHECK_NEAR(number(r, "estimators.hedged.T2x"), fixture_at(hedged, "T2x_sym/est")->valuedouble, 1e-9);
    double jack = 0, split = 0;
    for (int s = 0; s < 2; s++) {
        const cJSON *level = fixture_at(f.expected, s ? "renorm/levels_identity/mu" : "renorm/levels_identity/pi");
        const cJSON *j = fixture_at(level, "JK"), *x = fixture_at(level, "split_sign");
        int N = cJSON_GetArraySize(j);
        for (int i = 0; i < N; i++)
            jack += 0.5 * cJSON_GetArrayItem(j, i)->valuedouble / N,
                split += 0.5 * cJSON_GetArrayItem(x, i)->valuedouble / N;
    }
    CHECK_NEAR(number(r, "estimators.jackknife.estimate"), jack, 1e-12);
    CHECK_NEAR(number(r, "estimators.split_sign.estimate"), split, 1e-12);
    /* the plug-in's interval is the bracket */
    const cJSON *ci = tv_view_item(r, "estimators.plugin.ci95");
    CHECK_NEAR(cJSON_GetArrayItem(ci, 0)->valuedouble,
               split - 1.959963984540054 * number(r, "estimators.split_sign.se"), 1e-12);
    CHECK_NEAR(cJSON_GetArrayItem(ci, 1)->valuedouble,
               number(r, "estimators.plugin.estimate") + 1.959963984540054 * number(r, "estimators.plugin.se"), 1e-12);
    /* sigma in serving order is the golden one: a standard deviation, mean over both sets */
    double sigma = 0.5 * (sqrt(fixture_at(f.expected, "renorm/sigma/pi_pi/sigma2_union")->valuedouble) +
                          sqrt(fixture_at(f.expected, "renorm/sigma/pi_mu/sigma2_union")->valuedouble));
    CHECK_NEAR(number(r, "sigma.a.union_chi2"), sigma, 1e-12);
    /* own mass: trajectory 4 of set a is lost by both sides */
    CHECK_NEAR(number(r, "checks.own_zero_mass_a"), 1.0 / 16, 0);
    CHECK_NEAR(number(r, "checks.both_dead"), 0.5 / 16, 1e-15);
    const cJSON *per_length = tv_view_item(r, "per_length"), *last = cJSON_GetArrayItem(per_length, 23),
                *per_repeat = tv_view_item(r, "per_repeat");
    CHECK_INT(cJSON_GetArraySize(per_length), 24);
    CHECK_INT(number(last, "length"), 24);
    CHECK_NEAR(number(last, "tv"), number(r, "estimators.plugin.estimate"), 1e-15);
    CHECK_NEAR(number(last, "mismatch"), number(r, "estimators.plugin.mismatch"), 1e-15);
    CHECK_INT(cJSON_GetArraySize(per_repeat), 8);
    CHECK_NEAR(number(cJSON_GetArrayItem(per_repeat, 3), "tv"),
               fixture_at(f.expected, "renorm/plugin/4/tv_sym")->valuedouble, 1e-12);
    CHECK_NEAR(number(cJSON_GetArrayItem(per_repeat, 3), "floor_a"), number(r, "floor.a.estimate"), 1e-15);
    CHECK(cJSON_IsNull(cJSON_GetObjectItem(cJSON_GetArrayItem(per_repeat, 4), "floor_a")));
    CHECK_STR(tv_view_string(r, "tv.estimator"), "hedged");
    CHECK(cJSON_IsFalse(tv_view_item(r, "bit_identical")) && number(r, "differing_values") > 0);
    cJSON_Delete(r);
    fixture_close(&f);
}

/* The number of threads changes nothing, to the last character. */
static void test_threads(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    char *text[2];
    int before = omp_get_max_threads();
    for (int x = 0; x < 2; x++) {
        omp_set_num_threads(x ? 7 : 1);
        cJSON *r = build(&f.set, (tv_report_options){.seed = 3});
        text[x] = tv_json_text(r);
        cJSON_Delete(r);
    }
    omp_set_num_threads(before);
    CHECK_STR(text[1], text[0]);
    free(text[0]);
    free(text[1]);
    fixture_close(&f);
}

/* A real pair of deterministic engines: the hedged value leads, with sampling error alone. */
static void test_deterministic_pair(void) {
    fixture f;
    if (!fixture_open(&f, "real_transformers", "real_transformers.expected.json", "a", "b")) return;
    f.set.deterministic[0] = f.set.deterministic[1] = 1;
    cJSON *r = build(&f.set, (tv_report_options){0});
    if (!r) return;
    double est = fixture_at(f.expected, "hedged_sym/est")->valuedouble,
           se = fixture_at(f.expected, "hedged_sym/se")->valuedouble;
    CHECK_NEAR(number(r, "tv.estimate"), est, 1e-9);
    CHECK_NEAR(number(r, "tv.se"), se, 1e-9);
    CHECK_NEAR(cJSON_GetArrayItem(tv_view_item(r, "tv.ci95"), 0)->valuedouble, est - 1.959963984540054 * se, 1e-9);
    CHECK_NEAR(number(r, "estimators.plugin.estimate"), fixture_at(f.expected, "sym")->valuedouble, 1e-12);
    CHECK(number(r, "floor.a.estimate") == 0 && number(r, "floor.b.se") == 0 && number(r, "sigma.a.union_chi2") == 0);
    CHECK_STR(tv_view_string(r, "beyond_noise.verdict"), "yes");
    cJSON_Delete(r);
    /* The same single reads, not known to be deterministic: the plug-in leads with its bracket, and says what is
     * missing. */
    f.set.deterministic[0] = f.set.deterministic[1] = 0;
    r = build(&f.set, (tv_report_options){0});
    if (!r) return;
    CHECK_STR(tv_view_string(r, "tv.estimator"), "plugin");
    CHECK(cJSON_IsNull(tv_view_item(r, "estimators.hedged")) && cJSON_IsNull(tv_view_item(r, "sigma.a.union_chi2")) &&
          cJSON_IsNull(tv_view_item(r, "floor.a")));
    CHECK_STR(tv_view_string(r, "beyond_noise.verdict"), "cannot tell");
    free(printed(r));
    cJSON_Delete(r);
    fixture_close(&f);
}

/* Side a against itself. */
static void test_identical(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    for (int s = 0; s < 2; s++) {
        f.set.set[s].ids[TV_B] = f.set.set[s].ids[TV_A];
        f.set.set[s].lps[TV_B] = f.set.set[s].lps[TV_A];
    }
    cJSON *r = build(&f.set, (tv_report_options){0});
    if (!r) return;
    CHECK(cJSON_IsTrue(tv_view_item(r, "bit_identical")));
    CHECK(number(r, "differing_values") == 0 && number(r, "compared_values") == 2 * 8 * 12 * 16 * 5);
    CHECK(number(r, "tv.estimate") == 0 && number(r, "tv.se") == 0);
    for (int i = 0; i < 2; i++) CHECK(cJSON_GetArrayItem(tv_view_item(r, "tv.ci95"), i)->valuedouble == 0);
    CHECK(strstr(tv_view_string(r, "tv.method"), "bit-identical") != NULL);
    char *text = printed(r);
    CHECK(strstr(text, "TV = 0 exactly") != NULL);
    free(text);
    cJSON_Delete(r);
    /* One bit of one log-probability in one pass ends it. */
    static float changed[12 * 16 * 5];
    memcpy(changed, f.lps[1][0][5], sizeof changed);
    changed[77] = nextafterf(changed[77], 0);
    static const float *lps[8];
    for (int rho = 0; rho < 8; rho++) lps[rho] = rho == 5 ? changed : f.lps[1][0][rho];
    f.set.set[1].lps[TV_B] = lps;
    r = build(&f.set, (tv_report_options){0});
    CHECK(cJSON_IsFalse(tv_view_item(r, "bit_identical")) && number(r, "differing_values") == 1);
    cJSON_Delete(r);
    fixture_close(&f);
}

/* Slots in another order are the same record; one slot less is one value. */
static void test_compare(void) {
    static const int32_t tokens[1] = {4}, ix[3] = {4, 9, -1}, iy[3] = {-1, 9, 4}, iz[3] = {4, -1, -1};
    static const float lx[3] = {-1, -2, -INFINITY}, ly[3] = {7, -2, -1}, lz[3] = {-1, 0, 0};
    const int32_t *a[1] = {ix}, *b[1] = {iy}, *c[1] = {iz};
    const float *la[1] = {lx}, *lb[1] = {ly}, *lc[1] = {lz};
    tv_dataset d = {.n = 1, .temperature = 1};
    for (int s = 0; s < 2; s++)
        d.set[s] = (tv_set){.N = 1, .tokens = tokens, .reads = {1, 1}, .k = {3, 3}, .ids = {a, b}, .lps = {la, lb}};
    int64_t differing, of;
    CHECK(tv_sides_compare(&d, &differing, &of));
    CHECK_INT(of, 6);
    d.deterministic[0] = d.deterministic[1] = 1; /* two reads are usable, the one pair that is stored counts once */
    CHECK(tv_sides_compare(&d, &differing, &of));
    CHECK_INT(of, 6);
    d.deterministic[0] = d.deterministic[1] = 0;
    for (int s = 0; s < 2; s++) d.set[s].ids[1] = c, d.set[s].lps[1] = lc;
    CHECK(!tv_sides_compare(&d, &differing, &of));
    CHECK_INT(differing, 2);
    /* Ranks and token log-probabilities count where both sides have them. */
    static const int32_t rank_a[1] = {0}, rank_b[1] = {1};
    const int32_t *ra[1] = {rank_a}, *rb[1] = {rank_b};
    for (int s = 0; s < 2; s++) d.set[s].ids[1] = b, d.set[s].lps[1] = lb;
    d.set[1].rank[0] = ra, d.set[1].rank[1] = rb;
    CHECK(!tv_sides_compare(&d, &differing, &of));
    CHECK(differing == 1 && of == 7);
    d.set[1].rank[0] = d.set[1].rank[1] = NULL;
    /* One read of a deterministic side against three, of which the last alone differs. */
    const int32_t *three[3] = {iy, iy, iz};
    const float *three_lps[3] = {ly, ly, lz};
    for (int s = 0; s < 2; s++) d.set[s].ids[1] = three, d.set[s].lps[1] = three_lps, d.set[s].reads[1] = 3;
    d.deterministic[0] = 1;
    CHECK(!tv_sides_compare(&d, &differing, &of));
    CHECK(differing == 2 && of == 18);
    d.deterministic[0] = 0;
    for (int s = 0; s < 2; s++) d.set[s].reads[1] = 1;
    /* Agreement of replay with sampling: largest difference, and slots that replay lost. */
    static const int32_t sample_ids[3] = {9, 4, 5};
    static const float sample_lps[3] = {-2.25f, -1, -3}, sample_own[1] = {-1.5f}, own[1] = {-1};
    const float *own_list[1] = {own};
    d.set[0].sample_ids = sample_ids, d.set[0].sample_lps = sample_lps, d.set[0].k_sample = 3;
    double largest;
    int64_t missing;
    CHECK(tv_sampling_agreement(&d, 0, &largest, &missing));
    CHECK_NEAR(largest, 0.25, 0);
    CHECK_INT(missing, 1);
    d.set[0].sample_own_lp = sample_own, d.set[0].own_lp[0] = own_list;
    CHECK(tv_sampling_agreement(&d, 0, &largest, &missing));
    CHECK_NEAR(largest, 0.5, 0);
    CHECK(!tv_sampling_agreement(&d, 1, &largest, &missing));
}

/* A single trajectory: the estimate without an error bar, null with the reason, and exit by --fail-above undecided. */
static void test_one_trajectory(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    for (int reads = 1; reads <= 2; reads++) {
        f.set.set[0].N = f.set.set[1].N = 1;
        cJSON *r = build(&f.set, (tv_report_options){.reads = reads});
        if (!r) return;
        CHECK(number(r, "tv.estimate") >= 0 && cJSON_IsNull(tv_view_item(r, "tv.se")) &&
              cJSON_IsNull(tv_view_item(r, "tv.ci95")));
        CHECK(strstr(tv_view_string(r, "tv.ci95_reason"), "one trajectory") != NULL);
        CHECK_STR(tv_view_string(r, "tv.estimator"), "plugin");
        char *text = printed(r);
        CHECK(strstr(text, "without an error bar") && strstr(text, "exit code 4"));
        free(text);
        cJSON_Delete(r);
    }
    fixture_close(&f);
}

/* Data made by hand: N trajectories of 2 tokens, 2 reads, two slots a record. */
typedef struct {
    tv_dataset data;
    int32_t tokens[2 * 6], ids[2][2 * 6 * 2];
    float lps[2][2 * 6 * 2];
    const int32_t *id_list[2][2];
    const float *lp_list[2][2];
} small;

static void small_make(small *m, int64_t N) {
    memset(m, 0, sizeof *m);
    m->data.n = 2;
    m->data.temperature = 1;
    for (int i = 0; i < 12; i++) {
        m->tokens[i] = 3;
        for (int e = 0; e < 2; e++) {
            m->ids[e][2 * i] = 3, m->ids[e][2 * i + 1] = 8;
            m->lps[e][2 * i] = e ? -0.431f : -0.511f, m->lps[e][2 * i + 1] = e ? -1.05f : -0.917f;
        }
    }
    for (int s = 0; s < 2; s++) {
        m->data.set[s].N = N, m->data.set[s].tokens = m->tokens;
        for (int e = 0; e < 2; e++) {
            m->data.set[s].reads[e] = 2, m->data.set[s].k[e] = 2;
            for (int rho = 0; rho < 2; rho++) m->id_list[e][rho] = m->ids[e], m->lp_list[e][rho] = m->lps[e];
            m->data.set[s].ids[e] = m->id_list[e], m->data.set[s].lps[e] = m->lp_list[e];
        }
    }
}

/* All trajectories mismatched, both sides dead, no slot at all, huge log-ratios: the documented values, never NaN. */
static void test_degenerate(void) {
    small m;
    small_make(&m, 6);
    for (int i = 0; i < 24; i++) m.ids[TV_B][i] += 20; /* b never records the token */
    cJSON *r = build(&m.data, (tv_report_options){0});
    if (!r) return;
    CHECK(number(r, "estimators.plugin.estimate") == 1 && number(r, "estimators.plugin.mismatch") == 1 &&
          number(r, "estimators.plugin.shared") == 0);
    CHECK(cJSON_IsTrue(tv_view_item(r, "deterministic.a"))); /* found from the reads */
    CHECK_NEAR(number(r, "tv.estimate"), 1, 1e-9);
    CHECK_NEAR(number(r, "token.tv"), 1, 1e-12);
    CHECK(cJSON_IsNull(tv_view_item(r, "token.kl_ab")) && cJSON_IsNull(tv_view_item(r, "near_tie_mismatch")));
    free(printed(r));
    cJSON_Delete(r);

    small_make(&m, 6);
    for (int i = 0; i < 12; i++) m.tokens[i] = 99; /* neither records it */
    r = build(&m.data, (tv_report_options){0});
    CHECK(number(r, "estimators.plugin.estimate") == 1 && number(r, "checks.both_dead") == 1 &&
          number(r, "checks.own_zero_mass_a") == 1);
    free(printed(r));
    cJSON_Delete(r);

    small_make(&m, 6);
    for (int i = 0; i < 24; i++) m.ids[TV_B][i] = -1; /* b recorded nothing at all */
    r = build(&m.data, (tv_report_options){0});
    CHECK(number(r, "estimators.plugin.estimate") == 1 && cJSON_IsNull(tv_view_item(r, "token.tv")));
    free(printed(r));
    cJSON_Delete(r);

    small_make(&m, 6);
    for (int i = 0; i < 12; i++)
        m.lps[TV_B][2 * i] = -500, m.lps[TV_B][2 * i + 1] = 0; /* log-ratio of -1000 a trajectory */
    r = build(&m.data, (tv_report_options){0});
    CHECK_NEAR(number(r, "estimators.plugin.estimate"), 1, 1e-12);
    CHECK(number(r, "estimators.plugin.mismatch") == 0);
    free(printed(r));
    cJSON_Delete(r);

    small_make(&m, 6); /* cases X05: eight reads, the same in every bit */
    const int32_t *eight_ids[2][8];
    const float *eight_lps[2][8];
    for (int e = 0; e < 2; e++)
        for (int rho = 0; rho < 8; rho++) eight_ids[e][rho] = m.ids[e], eight_lps[e][rho] = m.lps[e];
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            m.data.set[s].reads[e] = 8, m.data.set[s].ids[e] = eight_ids[e], m.data.set[s].lps[e] = eight_lps[e];
    r = build(&m.data, (tv_report_options){0});
    CHECK(cJSON_IsTrue(tv_view_item(r, "deterministic.a")) && cJSON_IsTrue(tv_view_item(r, "deterministic.b")));
    CHECK(number(r, "floor.a.estimate") == 0 && number(r, "floor.b.estimate") == 0 && number(r, "floor.a.se") == 0);
    CHECK(number(r, "sigma.a.union_chi2") == 0 && number(r, "sigma.b.realized") == 0);
    free(printed(r));
    cJSON_Delete(r);

    small_make(&m, 6);
    int32_t ends[6] = {2, 0, 1, 2, 1, 2}; /* a trajectory that ended at once */
    for (int s = 0; s < 2; s++) m.data.set[s].lengths = ends;
    for (int i = 0; i < 6; i++)
        for (int t = ends[i]; t < 2; t++) m.tokens[2 * i + t] = -1;
    r = build(&m.data, (tv_report_options){0});
    CHECK(number(r, "estimators.plugin.mismatch") == 0);
    cJSON_Delete(r);
}

/* Where the scorer's mean is not what sampled the set, the hedged value follows the scorer: the plug-in leads, and says
 * so. */
static void test_unfaithful(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    static int32_t tokens[2][12 * 16];
    for (int s = 0; s < 2; s++) {
        for (int64_t x = 0; x < 12 * 16;
             x++) { /* always the token that gains most from a to b: nothing that was sampled */
            double best = -INFINITY;
            for (int j = 0; j < 5; j++)
                for (int l = 0; l < 5; l++)
                    if (f.ids[s][s][0][x * 5 + j] == f.ids[s][!s][0][x * 5 + l]) {
                        double d = f.lps[s][s][0][x * 5 + j] - f.lps[s][!s][0][x * 5 + l];
                        if (d > best) best = d, tokens[s][x] = f.ids[s][s][0][x * 5 + j];
                    }
        }
        f.set.set[s].tokens = tokens[s];
    }
    cJSON *r = build(&f.set, (tv_report_options){0});
    if (!r) return;
    CHECK(fabs(number(r, "faithfulness.a")) > 3);
    CHECK_STR(tv_view_string(r, "tv.estimator"), "plugin");
    CHECK(strstr(tv_view_string(r, "tv.method"), "faithfulness") && strstr(tv_view_string(r, "tv.method"), "bracket"));
    CHECK(cJSON_IsObject(tv_view_item(r, "estimators.hedged")));
    cJSON_Delete(r);
    fixture_close(&f);
}

/* Passes whose noise hangs together along a trajectory (as neighbours in a batch make it) look like a distance to every
 * estimator that takes positions to be independent. The sides here share one true distribution, a fair coin at every
 * position: each side's distance to itself shows what is left, and the interval, at least that wide, must hold 0. */
static void test_shared_noise_widens(void) {
    enum { N = 96, n = 48, R = 8, k = 2 };
    static int32_t tokens[2][N * n], ids[N * n * k];
    static float lps[2][2][R][N * n * k];
    const int32_t *id_reads[R];
    const float *lp_reads[2][2][R];
    tv_rng rng = {7};
    tv_dataset data = {.n = n, .temperature = 1};
    for (int64_t c = 0; c < N * n * k; c++) ids[c] = (int32_t)(c % k);
    for (int r = 0; r < R; r++) id_reads[r] = ids;
    for (int s = 0; s < 2; s++) {
        for (int64_t c = 0; c < N * n; c++) tokens[s][c] = (int32_t)(tv_rng_next(&rng) & 1);
        data.set[s].N = N;
        data.set[s].tokens = tokens[s];
        for (int e = 0; e < 2; e++) {
            for (int r = 0; r < R; r++) {
                lp_reads[s][e][r] = lps[s][e][r];
                for (int i = 0; i < N; i++) {
                    double tilt = 0.2 * tv_rng_normal(&rng); /* one for the whole trajectory, towards token 0 */
                    for (int t = 0; t < n; t++) {
                        double p = 1 / (1 + exp(-tilt));
                        int64_t cell = (int64_t)i * n + t;
                        lps[s][e][r][cell * k] = (float)log(p);
                        lps[s][e][r][cell * k + 1] = (float)log(1 - p);
                    }
                }
            }
            data.set[s].reads[e] = R;
            data.set[s].k[e] = k;
            data.set[s].ids[e] = id_reads;
            data.set[s].lps[e] = lp_reads[s][e];
        }
    }
    cJSON *r = build(&data, (tv_report_options){0});
    double estimate = number(r, "estimators.hedged.estimate"),
           allowance = number(r, "estimators.hedged.bias_allowance");
    double floor_a = number(r, "floor.a.hedged.estimate"), floor_b = number(r, "floor.b.hedged.estimate");
    CHECK_INT(number(r, "floor.a.hedged.r"), R / 2);
    int stands_out = 0;
    for (int e = 0; e < 2; e++) {
        double floor = e ? floor_b : floor_a, se = number(r, e ? "floor.b.hedged.se" : "floor.a.hedged.se");
        if (!(fabs(floor) > 2 * se)) continue;
        stands_out++;
        CHECK(allowance >= fabs(floor));
    }
    CHECK(stands_out > 0);
    double se = number(r, "estimators.hedged.se");
    CHECK(fabs(estimate) > 1.96 * se); /* sampling error alone would deny the truth */
    CHECK(fabs(estimate) <= 1.96 * se + allowance);
    cJSON_Delete(r);
}

/* cases X08: four sequences of 1000 tokens, two prompts and each of their sequences stored twice, are two
 * observations: not four, and not four thousand. */
static void test_duplicated_prompts(void) {
    enum { N = 4, n = 1000, R = 2 };
    tv_err err = {0};
    tv_chain chain;
    tv_dataset *data;
    const tv_markov_options pair = {.n = n, .contexts = 8, .topics = 2, .k = 8, .delta = 0.03, .seed = 2};
    if (!CHECK_OK(tv_chain_markov(&pair, &chain, &err), &err)) return;
    if (!CHECK_OK(tv_chain_record(&chain, &(tv_oracle){TV_ORACLE_HEAVY, 0.02, 1}, 0, N, R, &data, &err), &err)) return;
    static int32_t prompt[N] = {0, 0, 1, 1};
    double se[2], z[2][N];
    for (int s = 0; s < 2; s++) {
        const tv_set *set = &data->set[s];
        for (int i = 0; i < N; i += 2) {
            memcpy((int32_t *)set->tokens + (i + 1) * n, set->tokens + i * n, n * sizeof *set->tokens);
            for (int e = 0; e < 2; e++)
                for (int rho = 0; rho < R; rho++) {
                    const int64_t row = n * set->k[e];
                    memcpy((int32_t *)set->ids[e][rho] + (i + 1) * row, set->ids[e][rho] + i * row, (size_t)row * 4);
                    memcpy((float *)set->lps[e][rho] + (i + 1) * row, set->lps[e][rho] + i * row, (size_t)row * 4);
                }
        }
    }
    for (int clustered = 0; clustered < 2; clustered++) {
        for (int s = 0; s < 2; s++) data->set[s].prompt_index = clustered ? prompt : NULL;
        cJSON *r = build(data, (tv_report_options){0});
        if (!r) return;
        se[clustered] = number(r, "estimators.plugin.se");
        if (clustered) CHECK_INT(number(r, "tv.clusters"), 2);
        cJSON_Delete(r);
    }
    /* Taken as four: the variance of x, x, y, y over 4. As two prompts, whose sequences of both sets belong together.
     */
    tv_distance d;
    if (!CHECK_OK(tv_distance_run(data, &(tv_distance_options){.reads = R}, &d, &err), &err)) return;
    for (int s = 0; s < 2; s++) tv_distance_z(&d, s, R, z[s]);
    tv_distance_free(&d);
    const double a = 0.5 * (z[0][0] - z[0][2]), b = 0.5 * (z[1][0] - z[1][2]);
    CHECK_NEAR(se[0], 0.5 * sqrt((a * a + b * b) / 3), 1e-12);
    CHECK_NEAR(se[1], 0.5 * fabs(a + b), 1e-12);
    CHECK(se[1] > 1.5 * se[0]);
    for (int s = 0; s < 2; s++) data->set[s].prompt_index = NULL;
    tv_chain_record_free(data);
    tv_chain_free(&chain);
}

/* Trajectories of several prompts are clustered; copies of one prompt's trajectories do not narrow the bar. */
static void test_clusters(void) {
    fixture f;
    if (!fixture_open(&f, "g2_basic", NULL, "pi", "mu")) return;
    static int32_t prompt[12];
    for (int i = 0; i < 12; i++) prompt[i] = i / 3;
    for (int s = 0; s < 2; s++) f.set.set[s].prompt_index = prompt;
    cJSON *r = build(&f.set, (tv_report_options){0});
    if (!r) return;
    CHECK_INT(number(r, "tv.clusters"), 4);
    double se = number(r, "estimators.jackknife.se"), at = number(r, "estimators.jackknife.estimate");
    CHECK_NEAR(cJSON_GetArrayItem(tv_view_item(r, "estimators.jackknife.ci95"), 1)->valuedouble,
               fmin(at + 3.182446305284263 * se, 1), 1e-9);
    cJSON_Delete(r);
    fixture_close(&f);
}

/* Options are checked, and refused by name. --reads takes the first reads. */
static void test_options(void) {
    fixture f;
    tv_err err = {0};
    cJSON *r;
    if (!fixture_open(&f, "g2_basic", "g2_basic.expected.json", "pi", "mu")) return;
    tv_report_options o = {.reads = 9};
    CHECK_FAILS(tv_report_build(&f.set, &o, &r, &err), TV_EARG, &err, "stored 8 passes");
    o = (tv_report_options){.readout = 6};
    CHECK_FAILS(tv_report_build(&f.set, &o, &r, &err), TV_EARG, &err, "readout = 6");
    o = (tv_report_options){.reads = -1};
    CHECK_FAILS(tv_report_build(&f.set, &o, &r, &err), TV_EARG, &err, "reads = -1");
    CHECK(r == NULL);
    r = build(&f.set, (tv_report_options){.reads = 4});
    CHECK_NEAR(number(r, "estimators.plugin.estimate"), fixture_at(f.expected, "renorm/plugin/4/tv_sym")->valuedouble,
               1e-12);
    CHECK_NEAR(number(r, "estimators.hedged.estimate"),
               fixture_at(f.expected, "renorm/hedged/4/auto/T2pj_sym/est")->valuedouble, 1e-9);
    cJSON_Delete(r);
    r = build(&f.set, (tv_report_options){.reads = 3}); /* odd: the hedged estimator uses one less */
    CHECK_NEAR(number(r, "estimators.hedged.estimate"),
               fixture_at(f.expected, "renorm/hedged/2/auto/T2pj_sym/est")->valuedouble, 1e-9);
    CHECK_INT(number(r, "estimators.hedged.r"), 2);
    cJSON_Delete(r);
    r = build(&f.set, (tv_report_options){.readout = 3});
    CHECK_INT(number(r, "readout"), 3);
    CHECK(number(r, "estimators.plugin.mismatch") > 0); /* fewer slots: some tokens are gone */
    cJSON_Delete(r);
    fixture_close(&f);
}

static cJSON *with_configurations(const fixture *f) {
    cJSON *r = build(&f->set, (tv_report_options){0});
    cJSON_AddItemToObject(r, "a",
                          cJSON_Parse("{\"attention\":{\"backend\":\"flash\",\"tile\":64},\"batch\":8,\"only_a\":1}"));
    cJSON_AddItemToObject(r, "b",
                          cJSON_Parse("{\"attention\":{\"backend\":\"<script>x</script>\",\"tile\":64},\"batch\":8}"));
    cJSON_AddStringToObject(r, "model", "dir/\x1b[31mname & \"co\"");
    return r;
}

/* Configurations are compared field by field, nested ones too. */
static void test_differences(void) {
    fixture f;
    if (!fixture_open(&f, "g1_tiny", NULL, "pi", "mu")) return;
    cJSON *r = with_configurations(&f);
    tv_view_differences d = tv_view_diff(r);
    CHECK_INT(d.n, 2);
    if (d.n == 2) {
        CHECK_STR(d.item[0].key, "attention.backend");
        CHECK_STR(d.item[0].a, "flash");
        CHECK_STR(d.item[1].key, "only_a");
        CHECK_STR(d.item[1].b, "(not set)");
    }
    tv_view_diff_free(&d);
    char *text = printed(r); /* also: no terminal codes from names */
    CHECK(strstr(text, "attention.backend") != NULL);
    free(text);
    cJSON_Delete(r);
    fixture_close(&f);
}

static char *page_of(const cJSON *r) {
    tv_err err = {0};
    char *path = tv_path_join(tv_test_dir(), "report.html"), *text = NULL;
    size_t size;
    CHECK_OK(tv_report_html(r, path, &err), &err);
    CHECK_OK(tv_file_read(path, 1 << 24, &text, &size, &err), &err);
    free(path);
    return text;
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

/* The page needs nothing from elsewhere, escapes what it shows, answers in order, and does without gnuplot. */
static void test_html(void) {
    fixture f;
    tv_err err = {0};
    if (!fixture_open(&f, "g3_mismatch", NULL, "pi", "mu")) return;
    cJSON *r = with_configurations(&f);
    char *text = page_of(r);
    if (!text) return;
    const char *at = text;
    for (int q = 0; q < TV_ANSWERS; q++) {
        char heading[80];
        snprintf(heading, sizeof heading, "</b>%s</h2>", tv_view_questions[q]);
        at = strstr(at, heading);
        if (!CHECK(at != NULL)) break;
    }
    CHECK(!strstr(text, "<script") && strstr(text, "&lt;script&gt;") && strstr(text, "&amp; &quot;co&quot;"));
    CHECK(!strchr(text, '\x1b') && !strstr(text, "src=") && !strstr(text, "@import") && !strstr(text, "url(http"));
    CHECK(!strstr(text, ">nan<") && !strstr(text, ">-nan<") && !strstr(text, ">inf<"));
    CHECK(strstr(text, "name=\"viewport\"") && strstr(text, "prefers-color-scheme:dark"));
    /* A screen reader finds language, landmarks and names: every table has a caption and heads, every picture a label.
     */
    CHECK(strstr(text, "<html lang=\"en\">") && strstr(text, "<main>") && strstr(text, "<header>") &&
          strstr(text, "<nav aria-label=") && strstr(text, "aria-labelledby=\"q6\""));
    CHECK_INT(count(text, "<table>"), count(text, "<caption"));
    CHECK_INT(count(text, "<table>"), count(text, "<thead>"));
    CHECK(count(text, "<table>") >= 6);
    CHECK(!strstr(text, "<th>") && !strstr(text, "scope=\"col\"></th>") && strstr(text, "<th scope=\"row\">"));
    CHECK_INT(count(text, "<svg"), count(text, "role=\"img\" aria-label=") - 1); /* and the gauge */
    CHECK_INT(count(text, "<section aria-labelledby="), TV_ANSWERS + 1);
    /* What is promised beside the answers: who was measured, and the worst tokens with both probabilities and margin.
     */
    CHECK(strstr(text, ">Provenance</h2>") && strstr(text, "Both configurations in full"));
    CHECK(strstr(text, ">p under a</th>") && strstr(text, ">p under b</th>") && strstr(text, ">margin, nats</th>"));
    free(text);
    /* Without gnuplot on the PATH: tables, and one line that says how to plot. */
    char *path = tv_xstrdup(getenv("PATH") ? getenv("PATH") : "");
    setenv("PATH", tv_test_dir(), 1);
    text = page_of(r);
    setenv("PATH", path, 1);
    free(path);
    char *first = strstr(text, "Plots need gnuplot");
    CHECK(first && !strstr(first + 1, "Plots need gnuplot") && !strstr(text, "<figure>") &&
          strstr(text, "Numbers by length"));
    free(text);
    CHECK_FAILS(tv_report_html(r, "/nonexistent-folder/report.html", &err), TV_EIO, &err,
                "/nonexistent-folder/report.html");
    cJSON_Delete(r);
    fixture_close(&f);
}

static const tv_test tests[] = {{"report_keys", test_keys},
                                {"report_threads", test_threads},
                                {"report_deterministic_pair", test_deterministic_pair},
                                {"report_identical", test_identical},
                                {"report_compare", test_compare},
                                {"report_one_trajectory", test_one_trajectory},
                                {"report_degenerate", test_degenerate},
                                {"report_unfaithful", test_unfaithful},
                                {"report_shared_noise_widens", test_shared_noise_widens},
                                {"report_duplicated_prompts", test_duplicated_prompts},
                                {"report_clusters", test_clusters},
                                {"report_options", test_options},
                                {"report_differences", test_differences},
                                {"report_html", test_html}};
TV_TEST_MAIN(tests)
