/* What the files of engine/ know of an open engine. */
#ifndef TV_ENGINE_H
#define TV_ENGINE_H

#include "engine/tv.h"
#include "models/weights.h"

struct tv_engine {
    const tv_ops *ops;
    tv_dev *dev;
    tv_model *model;
    char *dir; /* checkpoint folder */
    /* One block of device memory for the caches and activations of all sessions that it is large enough for: their calls
     * come one after the other, and none reads what an earlier one left. NULL while no session is open. */
    void *lent;
    uint64_t lent_bytes;
    int borrowers;
    int graphs;    /* steps may be recorded, where device and backend can */
    int in_flight; /* steps that sessions opened from now on may have submitted and not collected; >= 1 */
};

/* tv_session_libraries; session NULL: of all sessions. */
cJSON *tv_libraries_of(const tv_engine *engine, const tv_session *session);

#endif
