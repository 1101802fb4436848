// The runtime of kernels/cuda/runtime.h on the CPU, made to show what a card would only sometimes:
// - Launches, copies and events are queued, and run when something waits for their stream: results that nothing waited for
//   are 0xff, in memory of the host and of the card alike.
// - Memory of the card lies in one mapping that is readable only while the queue runs: host code that touches it dies.
// - Pinned memory is read when the copy runs, pageable memory when it is queued, as on a card.
// - A capture records; allocating or waiting inside one, and copying from or to pageable memory, dies.
#include "kernels/cuda/runtime.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tests/simt/runtime_simt.h"
#include "tests/simt/simt.h"

#if SIMT_TSAN // longer histories cost much for the many threads of a card
extern "C" const char *__tsan_default_options() { return "history_size=0 halt_on_error=1"; }
#endif

namespace {
constexpr size_t CARD = (size_t)4 << 30, ALIGN = 256, RED_ZONE = 256;

[[noreturn]] __attribute__((format(printf, 1, 2))) void die(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "SIMT ERROR in the runtime: ");
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

// ---- memory of the card ----

unsigned char *card;                   // CARD bytes of address space
size_t top;                            // bytes of it that were ever handed out
std::map<size_t, size_t> blocks;       // offset -> bytes, of what is handed out now
std::map<uintptr_t, size_t> pinned;    // address -> bytes
uint64_t allocations;                  // device and pinned, since the program began
uint64_t waits;                        // for streams and events
int opened;                            // depth of Unlock

bool on_card(const void *p) { return card && (const unsigned char *)p >= card && (const unsigned char *)p < card + CARD; }

void on_fault(int, siginfo_t *info, void *) {
    if (!on_card(info->si_addr)) {
        signal(SIGSEGV, SIG_DFL); // the access is made again, and ends the program in the usual way
        return;
    }
    static const char text[] = "SIMT ERROR in the runtime: host code touched memory of the card\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(1);
    abort();
}

// Memory of the card may be touched while one of these lives.
struct Unlock {
    Unlock() {
        if (!opened++ && top) mprotect(card, top, PROT_READ | PROT_WRITE);
    }
    ~Unlock() {
        if (!--opened && top) mprotect(card, top, PROT_NONE);
    }
};

size_t rounded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// ---- queues ----

struct Op {
    virtual ~Op() {}
    virtual void queued() {} // the host's side of it, when it is queued or its graph launched
    virtual void run() = 0;
    virtual bool same(const Op &) const { return false; }
};

struct LaunchOp : Op {
    std::unique_ptr<simt::Launch> l;
    explicit LaunchOp(simt::Launch *launch) : l(launch) {}
    void run() override { l->run(); }
    bool same(const Op &other) const override {
        const LaunchOp *o = dynamic_cast<const LaunchOp *>(&other);
        return o && o->l->key == l->key && !memcmp(&o->l->grid, &l->grid, sizeof(dim3)) &&
               !memcmp(&o->l->block, &l->block, sizeof(dim3)) && o->l->smem == l->smem && o->l->np == l->np &&
               !memcmp(o->l->params, l->params, l->np);
    }
};

struct CopyOp : Op {
    void *dst;
    const void *src;
    size_t bytes;
    std::vector<unsigned char> staged; // of pageable memory
    void queued() override {
        if (!on_card(dst)) memset(dst, 0xff, bytes);
    }
    void run() override { memcpy(dst, staged.empty() ? src : staged.data(), bytes); }
    bool same(const Op &other) const override {
        const CopyOp *o = dynamic_cast<const CopyOp *>(&other);
        return o && o->dst == dst && o->src == src && o->bytes == bytes;
    }
};

struct ZeroOp : Op {
    void *dst;
    size_t bytes;
    void run() override { memset(dst, 0, bytes); }
    bool same(const Op &other) const override {
        const ZeroOp *o = dynamic_cast<const ZeroOp *>(&other);
        return o && o->dst == dst && o->bytes == bytes;
    }
};

typedef std::vector<std::unique_ptr<Op>> Ops;

bool is_pinned(const void *p, size_t bytes) {
    auto it = pinned.upper_bound((uintptr_t)p);
    return it != pinned.begin() && (--it, (uintptr_t)p + bytes <= it->first + it->second);
}
} // namespace

struct cuda_rt_stream {
    std::deque<std::unique_ptr<Op>> queue;
    std::shared_ptr<Ops> capture; // null: none
};
struct cuda_rt_event {
    cuda_rt_stream *stream = nullptr; // of the record not reached yet
    uint64_t reached = 0;             // ns
};
struct cuda_rt_graph {
    std::shared_ptr<Ops> ops;
};

namespace {
std::vector<cuda_rt_stream *> streams;

struct EventOp : Op {
    cuda_rt_event *event;
    void run() override {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        event->reached = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        event->stream = nullptr;
    }
};
struct GraphOp : Op {
    std::shared_ptr<Ops> ops;
    void queued() override {
        for (auto &op : *ops) op->queued();
    }
    void run() override {
        for (auto &op : *ops) op->run();
    }
};

void add(cuda_rt_stream *stream, Op *op) {
    if (stream->capture) {
        stream->capture->emplace_back(op);
        return;
    }
    op->queued();
    stream->queue.emplace_back(op);
}

// Runs the queue to its end, or until event is reached.
void drain(cuda_rt_stream *stream, const cuda_rt_event *event) {
    Unlock unlock;
    while (!stream->queue.empty() && (!event || event->stream)) {
        std::unique_ptr<Op> op = std::move(stream->queue.front());
        stream->queue.pop_front();
        op->run();
    }
}
} // namespace

extern "C" {
int cuda_rt_cards(char *why, size_t size) {
    (void)why, (void)size;
    return 1;
}

tv_status cuda_rt_open(int gpu, cuda_rt_info *info, tv_err *err) {
    if (gpu != 0) return TV_FAIL(err, TV_EARG, "--gpu %d: there is card 0 alone (emulated)", gpu);
    if (!card) {
        card = (unsigned char *)mmap(nullptr, CARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (card == MAP_FAILED) die("no address space for a card");
        struct sigaction act = {};
        act.sa_sigaction = on_fault;
        act.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &act, nullptr);
        simt::g.defer = [](cudaStream_t stream, simt::Launch *l) { add((cuda_rt_stream *)stream, new LaunchOp(l)); };
    }
    *info = cuda_rt_info{};
    snprintf(info->name, sizeof info->name, "emulated card");
    info->major = 9, info->minor = 0, info->multiprocessors = 132, info->memory = info->free = CARD;
    return TV_OK;
}

tv_status cuda_rt_alloc(size_t bytes, void **p, tv_err *err) {
    simt_no_capture("an allocation");
    const size_t need = rounded(bytes ? bytes : 1);
    size_t at = RED_ZONE; // the first gap that holds it
    for (auto &b : blocks) {
        if (need <= CARD && at + need + RED_ZONE <= b.first) break;
        at = b.first + rounded(b.second) + RED_ZONE;
    }
    *p = nullptr;
    if (need > CARD || at + need + RED_ZONE > CARD)
        return TV_FAIL(err, TV_ENOMEM, "cuda: allocating memory of the card: no memory left");
    Unlock unlock;
    if (at + need > top) {
        top = at + need;
        mprotect(card, top, PROT_READ | PROT_WRITE);
    }
    blocks[at] = need;
    allocations++;
#if SIMT_ASAN
    ASAN_POISON_MEMORY_REGION(card + at - RED_ZONE, RED_ZONE + need);
    ASAN_UNPOISON_MEMORY_REGION(card + at, bytes);
    if (at + need == top) ASAN_POISON_MEMORY_REGION(card + top, RED_ZONE);
#endif
    memset(card + at, 0xff, bytes);
    *p = card + at;
    return TV_OK;
}

void cuda_rt_free(void *p) {
    if (!p) return;
    simt_no_capture("freeing memory");
    const size_t at = (size_t)((unsigned char *)p - card);
    if (!blocks.count(at)) die("freeing %p, which is no allocation", p);
    for (cuda_rt_stream *s : streams)
        if (!s->queue.empty()) drain(s, nullptr); // as cudaFree waits for what may use the memory
#if SIMT_ASAN
    ASAN_POISON_MEMORY_REGION(p, blocks[at]);
#endif
    madvise(p, blocks[at] / 4096 * 4096, MADV_DONTNEED); // refused where it is not page aligned: no harm
    blocks.erase(at);
}

tv_status cuda_rt_host_alloc(size_t bytes, void **p, tv_err *err) {
    simt_no_capture("an allocation");
    *p = aligned_alloc(ALIGN, rounded(bytes ? bytes : 1));
    if (!*p) return TV_FAIL(err, TV_ENOMEM, "cuda: allocating pinned memory of the host: no memory left");
    memset(*p, 0xff, bytes);
    pinned[(uintptr_t)*p] = bytes;
    allocations++;
    return TV_OK;
}

void cuda_rt_host_free(void *p) {
    if (!p) return;
    simt_no_capture("freeing memory");
    if (!pinned.erase((uintptr_t)p)) die("freeing %p, which is no pinned allocation", p);
    free(p);
}

tv_status cuda_rt_stream_open(cuda_rt_stream **stream, tv_err *err) {
    (void)err;
    streams.push_back(*stream = new cuda_rt_stream);
    return TV_OK;
}

void cuda_rt_stream_close(cuda_rt_stream *stream) {
    drain(stream, nullptr);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream) streams.erase(streams.begin() + (ptrdiff_t)i);
    delete stream;
}

tv_status cuda_rt_stream_sync(cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    simt_no_capture("waiting");
    waits++;
    drain(stream, nullptr);
    return TV_OK;
}

tv_status cuda_rt_copy(void *dst, const void *src, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    std::unique_ptr<CopyOp> op(new CopyOp);
    op->dst = dst, op->src = src, op->bytes = bytes;
    const bool pageable_src = !on_card(src) && !is_pinned(src, bytes), pageable_dst = !on_card(dst) && !is_pinned(dst, bytes);
    if (stream->capture && (pageable_src || pageable_dst)) die("a copy of pageable memory inside a capture");
    if (pageable_src) op->staged.assign((const unsigned char *)src, (const unsigned char *)src + bytes);
    add(stream, op.release());
    return TV_OK;
}

tv_status cuda_rt_zero(void *dst, size_t bytes, cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    std::unique_ptr<ZeroOp> op(new ZeroOp);
    op->dst = dst, op->bytes = bytes;
    add(stream, op.release());
    return TV_OK;
}

tv_status cuda_rt_launched(const char *kernel, tv_err *err) {
    (void)kernel, (void)err; // a launch that a card would refuse ends the program (simt.h)
    return TV_OK;
}

tv_status cuda_rt_event_open(cuda_rt_event **event, tv_err *err) {
    (void)err;
    *event = new cuda_rt_event;
    return TV_OK;
}

void cuda_rt_event_close(cuda_rt_event *event) {
    if (event && event->stream) drain(event->stream, event);
    delete event;
}

tv_status cuda_rt_event_record(cuda_rt_event *event, cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    if (stream->capture) die("an event inside a capture");
    event->stream = stream;
    EventOp *op = new EventOp;
    op->event = event;
    add(stream, op);
    return TV_OK;
}

tv_status cuda_rt_event_sync(cuda_rt_event *event, tv_err *err) {
    (void)err;
    simt_no_capture("waiting");
    waits++;
    if (event->stream) drain(event->stream, event);
    return TV_OK;
}

tv_status cuda_rt_event_elapsed(cuda_rt_event *from, cuda_rt_event *to, float *ms, tv_err *err) {
    if (!from->reached || !to->reached || from->stream || to->stream)
        return TV_FAIL(err, TV_EDEVICE, "cuda: taking the time between events: one was not reached");
    *ms = (float)(1e-6 * (double)(int64_t)(to->reached - from->reached));
    return TV_OK;
}

tv_status cuda_rt_capture_begin(cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    simt_no_capture("beginning a capture");
    stream->capture = std::make_shared<Ops>();
    return TV_OK;
}

tv_status cuda_rt_capture_end(cuda_rt_stream *stream, cuda_rt_graph **graph, tv_err *err) {
    (void)err;
    if (!stream->capture) die("ending a capture that was not begun");
    *graph = new cuda_rt_graph{std::move(stream->capture)};
    stream->capture = nullptr;
    return TV_OK;
}

tv_status cuda_rt_graph_launch(cuda_rt_graph *graph, cuda_rt_stream *stream, tv_err *err) {
    (void)err;
    simt_no_capture("launching a graph");
    GraphOp *op = new GraphOp;
    op->ops = graph->ops;
    add(stream, op);
    return TV_OK;
}

void cuda_rt_graph_close(cuda_rt_graph *graph) { delete graph; }

// ---- for tests ----

void simt_schedule(int i) {
    simt::g.order = i == 0 ? simt::FORWARD : i == 1 ? simt::REVERSE : simt::RANDOM;
    simt::g.seed = i == 2 ? 1 : 2654435761u;
}

uint64_t simt_bank_conflicts(void) { return simt::g.stats.ldsm_conflicts; }

uint64_t simt_allocations(void) { return allocations; }

uint64_t simt_waits(void) { return waits; }

void simt_no_capture(const char *what) {
    for (cuda_rt_stream *s : streams)
        if (s->capture) die("%s inside a capture", what);
}

int simt_same_graph(const cuda_rt_graph *a, const cuda_rt_graph *b) {
    if (a->ops->size() != b->ops->size()) return 0;
    for (size_t i = 0; i < a->ops->size(); i++)
        if (!(*a->ops)[i]->same(*(*b->ops)[i])) return 0;
    return 1;
}
}
