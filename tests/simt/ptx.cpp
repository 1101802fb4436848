// ptx.cpp - a small PTX interpreter behind simt::launch: the same tests, but running the PTX that nvcc made.
// Linked into a test of the emulated card it takes every launch: the kernel's symbol (dladdr: link with -rdynamic) is looked
// up in the file that the environment's TV_PTX names, then in TV_PTX_FILES of the build.
// One warp steps in lockstep; the lanes with the lowest pc go first, which brings divergent lanes together again.
// Checks: bounds of global memory (where AddressSanitizer is linked in), alignment, shared-memory races per barrier phase, divergent barriers and
// warp operations. Counts: instructions, 32-byte sectors per global access, shared-memory bank conflicts.
#include "tests/simt/simt.h"
#include <dlfcn.h>
#include <map>
#include <string>
#include <vector>
using std::string;
typedef uint64_t u64;
typedef uint32_t u32;
extern "C" void* __asan_region_is_poisoned(void* beg, size_t size) __attribute__((weak));  // there where AddressSanitizer is

namespace {
enum Space : uint8_t { GLOBAL, SHARED, PARAM, LOCAL };
struct Ty { char c; uint8_t w; };  // c: b u s f p(red) h(bf16) e(e4m3); w: bytes
struct Opnd { enum K : uint8_t { NONE, REG, IMM, SREG } k = NONE; int r = 0; u64 v = 0; };
struct Ins {
    int op = 0, vec = 1, pred = -1, target = -1, n = 0;
    bool neg = false, wide = false, hi = false, to = false, pack = false;
    char mode = 0, cc = 0, un = 0;                   // shuffle, vote, rounding or cp.async mode; comparison and its unordered form
    Space sp = GLOBAL;
    Ty t{'b', 4}, t2{'b', 4};
    string mod, cmp, boolop, text;
    Opnd o[20];
};
struct Count { u64 launches, ins, sectors, least, passes, conflicts; };  // global sectors and the least there could be; shared memory
struct Kernel { string name; std::vector<Ins> code; std::map<string, int> label, param; std::map<string, u64> smem; int nreg = 0; u64 sbytes = 0, pbytes = 0; Count count{}; };
enum Op { MOV, LD, ST, ADD, SUB, MUL, MAD, FMA, DIV, REM, NEG, ABS, MIN, MAX, AND, OR, XOR, NOT, SHL, SHR, SELP, SETP, CVT, CVTA, BRA, RET, BAR, SHFL, VOTE,
          EX2, LG2, RCP, RSQRT, SQRT, MMA, LDSM, CPA, PRMT, POPC, CLZ, BFI, ATOM, FENCE, WSYNC, NOPS };
const std::map<string, int> OPS = {{"mov", MOV}, {"ld", LD}, {"st", ST}, {"add", ADD}, {"sub", SUB}, {"mul", MUL}, {"mad", MAD}, {"fma", FMA}, {"div", DIV}, {"rem", REM},
    {"neg", NEG}, {"abs", ABS}, {"min", MIN}, {"max", MAX}, {"and", AND}, {"or", OR}, {"xor", XOR}, {"not", NOT}, {"shl", SHL}, {"shr", SHR}, {"selp", SELP}, {"setp", SETP},
    {"cvt", CVT}, {"cvta", CVTA}, {"bra", BRA}, {"ret", RET}, {"exit", RET}, {"bar", BAR}, {"barrier", BAR}, {"shfl", SHFL}, {"vote", VOTE}, {"ex2", EX2}, {"lg2", LG2}, {"rcp", RCP},
    {"rsqrt", RSQRT}, {"sqrt", SQRT}, {"mma", MMA}, {"ldmatrix", LDSM}, {"cp", CPA}, {"prmt", PRMT}, {"popc", POPC}, {"clz", CLZ}, {"bfi", BFI}, {"atom", ATOM}, {"red", ATOM},
    {"membar", FENCE}, {"fence", FENCE}};
const std::map<string, int> SREGS = {{"%tid.x", 0}, {"%tid.y", 1}, {"%tid.z", 2}, {"%ctaid.x", 3}, {"%ctaid.y", 4}, {"%ctaid.z", 5}, {"%ntid.x", 6}, {"%ntid.y", 7}, {"%ntid.z", 8},
    {"%nctaid.x", 9}, {"%nctaid.y", 10}, {"%nctaid.z", 11}, {"%laneid", 12}, {"%warpid", 13}};
std::map<string, Kernel> kernels;

[[noreturn]] void die(const string& s) { fprintf(stderr, "PTX: %s\n", s.c_str()); abort(); }
bool type_of(const string& s, Ty* t) {
    if (s == "pred") { *t = Ty{'p', 1}; return true; }
    if (s == "bf16") { *t = Ty{'h', 2}; return true; }
    if (s == "bf16x2") { *t = Ty{'h', 4}; return true; }
    if (s == "f16x2") { *t = Ty{'f', 4}; return true; }  // of e4m3x2 only
    if (s == "e4m3x2") { *t = Ty{'e', 2}; return true; }
    if (s.size() < 2 || !strchr("busf", s[0])) return false;
    int b = atoi(s.c_str() + 1);
    if ((b != 8 && b != 16 && b != 32 && b != 64) || s != s[0] + std::to_string(b)) return false;
    *t = Ty{s[0], (uint8_t)(b / 8)};
    return true;
}

// ---- parser ----
struct Parser {
    string s;
    size_t p = 0;
    Kernel* k = nullptr;
    std::map<string, u64> gsm;                       // module-level shared variables: offset; extern ones start at the dynamic part
    u64 gsbytes = 0;
    std::vector<std::map<string, int>> scope;
    int reg(const string& n) {
        for (size_t i = scope.size(); i-- > 0;) { auto it = scope[i].find(n); if (it != scope[i].end()) return it->second; }
        return scope[0][n] = k->nreg++;
    }
    void ws() { while (p < s.size() && isspace((unsigned char)s[p])) p++; }
    string word() { ws(); size_t a = p; while (p < s.size() && (isalnum((unsigned char)s[p]) || strchr("_$%.", s[p]))) p++; return s.substr(a, p - a); }
    static string trim(const string& x) { size_t a = x.find_first_not_of(" \t\n"), b = x.find_last_not_of(" \t\n"); return a == string::npos ? "" : x.substr(a, b - a + 1); }
    Opnd operand(string t) {
        t = trim(t);
        Opnd o;
        if (t == "_" || t.empty()) return o;
        auto sr = SREGS.find(t);
        if (sr != SREGS.end()) { o.k = Opnd::SREG; o.r = sr->second; return o; }
        if (t == "WARP_SZ") { o.k = Opnd::IMM; o.v = 32; return o; }
        if (t[0] == '0' && t.size() > 2 && (t[1] == 'f' || t[1] == 'F' || t[1] == 'd' || t[1] == 'D')) { o.k = Opnd::IMM; o.v = strtoull(t.c_str() + 2, nullptr, 16); return o; }
        if (isdigit((unsigned char)t[0]) || t[0] == '-') { o.k = Opnd::IMM; o.v = (u64)strtoll(t.c_str(), nullptr, 0); return o; }
        auto sm = k->smem.find(t);
        if (sm != k->smem.end()) { o.k = Opnd::IMM; o.v = sm->second; return o; }
        auto pm = k->param.find(t);
        if (pm != k->param.end()) { o.k = Opnd::IMM; o.v = (u64)pm->second; return o; }
        o.k = Opnd::REG; o.r = reg(t);
        return o;
    }
    void operands(Ins& in, const string& t) {        // flat list: {a,b} gives two, [a+8] gives base and offset, a|b gives two
        string cur;
        auto flush = [&] { if (!trim(cur).empty()) { if (in.n == 20) die("too many operands"); in.o[in.n++] = operand(cur); } cur.clear(); };
        for (size_t i = 0; i < t.size(); i++) {
            char c = t[i];
            if (c == '[') {
                size_t e = t.find(']', i);
                string a = t.substr(i + 1, e - i - 1), off = "0";
                size_t plus = a.find('+');
                if (plus != string::npos) { off = a.substr(plus + 1); a = a.substr(0, plus); }
                in.o[in.n++] = operand(a); in.o[in.n++] = operand(off);
                i = e;
            } else if (strchr("{},|", c)) flush();
            else cur += c;
        }
        flush();
    }
    void shared_var(const string& st, std::map<string, u64>& to, u64& bytes) {  // .shared .align 4 .b8 name[32]
        size_t al = st.find(".align"), br = st.find('[');
        u64 a = al == string::npos ? 4 : strtoull(st.c_str() + al + 6, nullptr, 10);
        size_t e = br == string::npos ? st.size() : br, b = st.find_last_of(" \t", e - 1);
        bytes = (bytes + a - 1) / a * a;
        to[trim(st.substr(b + 1, e - b - 1))] = bytes;
        u64 n = br == string::npos ? 8 : strtoull(st.c_str() + br + 1, nullptr, 10);
        bytes += n;
    }
    void statement(string st) {
        Ins in;
        in.text = st;
        if (st[0] == '@') {
            in.neg = st[1] == '!';
            size_t e = st.find_first_of(" \t");
            in.pred = reg(st.substr(in.neg ? 2 : 1, e - (in.neg ? 2 : 1)));
            st = trim(st.substr(e));
        }
        size_t e = st.find_first_of(" \t\n");
        string full = st.substr(0, e), args = e == string::npos ? "" : st.substr(e);
        std::vector<string> m;
        for (size_t i = 0; i <= full.size();) { size_t d = full.find('.', i); if (d == string::npos) d = full.size(); m.push_back(full.substr(i, d - i)); i = d + 1; }
        auto it = OPS.find(m[0]);
        if (it == OPS.end()) die("unsupported instruction: " + in.text);
        in.op = it->second;
        in.mod = full + ".";
        bool first = true;
        for (size_t i = 1; i < m.size(); i++) {
            Ty t;
            if (type_of(m[i], &t)) { if (first) in.t = in.t2 = t; else in.t2 = t; first = false; }
            else if (m[i] == "v2") in.vec = 2;
            else if (m[i] == "v4") in.vec = 4;
            else if (m[i].rfind("shared", 0) == 0) in.sp = SHARED;
            else if (m[i] == "param") in.sp = PARAM;
            else if (m[i] == "local") in.sp = LOCAL;
            else if (m[i] == "wide") in.wide = true;
            else if (m[i] == "hi") in.hi = true;
            else if (m[i] == "to") in.to = true;
            else if (m[i] == "bfly" || m[i] == "down" || m[i] == "up" || m[i] == "idx" || m[i] == "ballot" || m[i] == "any" || m[i] == "all") in.mode = m[i][0] == 'b' && m[i] == "ballot" ? 'B' : m[i] == "all" ? 'A' : m[i] == "any" ? 'Y' : m[i][0];
            else if (m[i] == "rni" || m[i] == "rmi" || m[i] == "rpi" || m[i] == "rzi") in.mode = m[i][1];
            else if (m[i] == "commit_group") in.mode = 'c';
            else if (m[i] == "wait_group") in.mode = 'w';
            else if (m[i] == "wait_all") in.mode = 'W';
            else if (in.op == SETP && i == 1) in.cmp = m[i];
            else if (in.op == SETP && (m[i] == "and" || m[i] == "or" || m[i] == "xor")) in.boolop = m[i];
        }
        if (in.op == BAR && in.mod.find(".warp.") != string::npos) in.op = WSYNC;
        if (in.op == SETP) {
            const char* names[] = {"lt", "le", "gt", "ge", "eq", "ne", "lo", "ls", "hi", "hs", "num", "nan"};
            string c = in.cmp;
            if (c.size() == 3 && c[2] == 'u') { in.un = 1; c.pop_back(); }
            for (int i = 0; i < 12; i++) if (c == names[i]) in.cc = "lLgGenlLgG12"[i];
            if (!in.cc) die("comparison " + in.text);
        }
        in.pack = in.op == MOV && in.text.find('{') != string::npos && in.text.find('{') > in.text.find(',');
        if (in.op == BRA) in.mod = trim(args); else operands(in, args);
        k->code.push_back(in);
    }
    void body() {
        scope.assign(1, {});
        for (int depth = 1;;) {
            ws();
            if (p >= s.size()) die("unexpected end");
            if (s[p] == '{') { depth++; scope.emplace_back(); p++; continue; }
            if (s[p] == '}') { p++; if (--depth == 0) break; scope.pop_back(); continue; }
            size_t e = s.find_first_of(";:", p);
            if (s[e] == ':' && s[p] != '@' && s.find_first_of(" \t\n", p) > e) { k->label[s.substr(p, e - p)] = (int)k->code.size(); p = e + 1; continue; }
            e = s.find(';', p);
            if (s.compare(p, 4, ".loc") == 0) { p = s.find('\n', p); continue; }
            string st = trim(s.substr(p, e - p));
            p = e + 1;
            if (st.empty()) continue;
            if (st.compare(0, 4, ".reg") == 0) { size_t b = st.find_last_of(" \t"); string n = st.substr(b + 1); if (n.find('<') == string::npos && scope.size() > 1) scope.back()[n] = k->nreg++; continue; }
            if (st.compare(0, 7, ".shared") == 0) { shared_var(st, k->smem, k->sbytes); continue; }
            if (st.compare(0, 6, ".local") == 0) die("local memory (register array not in registers) in " + k->name);
            if (st[0] == '.') continue;
            statement(st);
        }
        for (Ins& in : k->code) if (in.op == BRA) { auto it = k->label.find(in.mod); if (it == k->label.end()) die("no label " + in.mod); in.target = it->second; }
    }
    void file(const string& text) {
        for (size_t i = 0; i < text.size();) {           // without comments
            size_t e = text.find("//", i);
            s.append(text, i, e == string::npos ? e : e - i);
            i = e == string::npos ? e : text.find('\n', e);
        }
        std::vector<string> ext;
        while (ws(), p < s.size()) {
            string w = word();
            if (w == ".entry") {
                string name = word();
                Kernel kn;
                kn.name = name; kn.smem = gsm; kn.sbytes = gsbytes;
                k = &(kernels[name] = kn);
                p = s.find('(', p) + 1;
                u64 off = 0;
                while (ws(), s[p] != ')') {          // .param .u64 name  |  .param .align 8 .b8 name[16]
                    size_t e = s.find_first_of(",)", p);
                    string d = trim(s.substr(p, e - p));
                    size_t br = d.find('['), al = d.find(".align"), b = d.find_last_of(" \t", br == string::npos ? d.size() : br - 1), ty = d.find('.', 6);
                    Ty t{'b', 1};
                    string tn = d.substr(ty + 1, d.find_first_of(" \t", ty) - ty - 1);
                    u64 n = 1, a = 1;
                    if (br != string::npos) { n = strtoull(d.c_str() + br + 1, nullptr, 10); a = strtoull(d.c_str() + al + 6, nullptr, 10); }
                    else { if (!type_of(tn, &t)) die("param type " + d); n = a = t.w; }
                    off = (off + a - 1) / a * a;
                    k->param[trim(d.substr(b + 1, (br == string::npos ? d.size() : br) - b - 1))] = (int)off;
                    off += n;
                    p = s[e] == ',' ? e + 1 : e;
                }
                p = s.find('{', p) + 1;
                k->pbytes = off;
                for (auto& x : ext) k->smem[x] = ~(u64)0;
                body();
                u64 dyn = (k->sbytes + 127) / 128 * 128;   // dynamic shared memory lies behind the static variables
                for (Ins& in : k->code) for (int i = 0; i < in.n; i++) if (in.o[i].k == Opnd::IMM && in.o[i].v == ~(u64)0 && !ext.empty() && in.text.find(ext[0]) != string::npos) in.o[i].v = dyn;
                k->sbytes = dyn;
            } else if (w == ".shared" || (w == ".extern" && word() == ".shared")) {
                size_t e = s.find(';', p);
                string st = trim(s.substr(p, e - p));
                if (w == ".extern") { size_t br = st.find('['), b = st.find_last_of(" \t", br - 1); ext.push_back(trim(st.substr(b + 1, br - b - 1))); }
                else shared_var(" " + st, gsm, gsbytes);
                p = e + 1;
            } else if (w.empty()) p++;
        }
    }
};

// ---- machine ----
const u64 SGEN = 0x7e0000000000ull;                  // generic address of shared offset 0
struct Pend { u32 dst; u64 src; int n, group, full; };
struct Warp {
    std::vector<u64> R;
    int pc[32], lanes, id;
    u32 run, group[32];
    int bar = -1, barpc = 0;
    u64 wep = 0;
    std::vector<Pend> cp[32];
};
struct Shadow { int w = -1, r = -1; u64 we = 0, ww = 0, re = 0, rw = 0; };
float f32(u64 v) { return __uint_as_float((u32)v); }
u64 b32(float f) { return __float_as_uint(f); }
double f64(u64 v) { double d; memcpy(&d, &v, 8); return d; }
u64 b64(double d) { u64 v; memcpy(&v, &d, 8); return v; }
int64_t sx(u64 v, int w) { int s = 64 - 8 * w; return (int64_t)(v << s) >> s; }
double f16(u64 v) { double d = ldexp(v & 1023, -24); int e = v >> 10 & 31; if (e) d = e == 31 ? (v & 1023 ? NAN : INFINITY) : ldexp(1024 + (double)(v & 1023), e - 25); return v & 0x8000 ? -d : d; }
u64 f16_of_e4m3(u64 v) {                             // exact; a subnormal's leading one becomes the exponent
    u64 sign = (v & 0x80) << 8, e = v >> 3 & 15, m = v & 7;
    if ((v & 0x7f) == 0x7f) return 0x7fff;
    if (!e && m) { e = 1; while (!(m & 8)) m <<= 1, e--; m &= 7; } else if (!e) return sign;
    return sign | (e + 8) << 10 | m << 7;
}
u64 zx(u64 v, int w) { return w == 8 ? v : v & ((1ull << 8 * w) - 1); }

struct Block {
    Kernel& k;
    dim3 grid, block;
    uint3 bid{};
    std::vector<unsigned char> sm;
    std::vector<Shadow> sh;
    const unsigned char* par;
    std::vector<Warp> w;
    u64 ep = 0;
    Warp* W = nullptr;
    const Ins* I = nullptr;
    Block(Kernel& kk, dim3 g, dim3 b, size_t dyn, const void* pp) : k(kk), grid(g), block(b), sm(kk.sbytes + dyn), sh((kk.sbytes + dyn + 1) / 2), par((const unsigned char*)pp) {}
    [[noreturn]] void err(const string& s, int lane = -1) {
        fprintf(stderr, "PTX ERROR in %s block (%u,%u,%u) warp %d lane %d: %s\n  at: %s\n", k.name.c_str(), bid.x, bid.y, bid.z, W ? W->id : -1, lane, s.c_str(), I ? I->text.c_str() : "");
        abort();
    }
    u64 get(const Opnd& o, int l) {
        if (o.k == Opnd::REG) return W->R[(size_t)o.r * 32 + l];
        if (o.k == Opnd::IMM) return o.v;
        u32 t = (u32)(W->id * 32 + l);
        switch (o.r) {
        case 0: return t % block.x; case 1: return t / block.x % block.y; case 2: return t / (block.x * block.y);
        case 3: return bid.x; case 4: return bid.y; case 5: return bid.z; case 6: return block.x; case 7: return block.y; case 8: return block.z;
        case 9: return grid.x; case 10: return grid.y; case 11: return grid.z; case 12: return (u64)l; case 13: return (u64)W->id;
        }
        return 0;
    }
    void set(const Opnd& o, int l, u64 v) { if (o.k == Opnd::REG) W->R[(size_t)o.r * 32 + l] = v; }
    void race(u64 off, int n, bool write, int l) {   // per 2 bytes, the least that kernels store: same barrier phase, or same warp phase within a warp
        int t = W->id * 32 + l;
        for (u64 i = off / 2; i < (off + n + 1) / 2; i++) {
            Shadow& s = sh[i];
            auto clash = [&](int o, u64 e, u64 we) { return o >= 0 && o != t && e == ep && (o / 32 != W->id || we == W->wep); };
            if (clash(s.w, s.we, s.ww)) err("shared-memory race: halfword " + std::to_string(i) + " written by thread " + std::to_string(s.w) + (write ? " and " : ", read by ") + std::to_string(t), l);
            if (write && clash(s.r, s.re, s.rw)) err("shared-memory race: halfword " + std::to_string(i) + " read by thread " + std::to_string(s.r) + ", written by " + std::to_string(t), l);
            if (write) { s.w = t; s.we = ep; s.ww = W->wep; } else { s.r = t; s.re = ep; s.rw = W->wep; }
        }
    }
    unsigned char* at(Space sp, u64 a, int n, int l, bool write, bool quiet = false) {
        if (a % n) err("misaligned access", l);
        if (sp == GLOBAL && a >= SGEN && a < SGEN + sm.size()) { sp = SHARED; a -= SGEN; }
        if (sp == SHARED) {
            if (a + n > sm.size()) err("shared memory access out of range: " + std::to_string(a), l);
            if (!quiet) race(a, n, write, l);
            return &sm[a];
        }
        if (__asan_region_is_poisoned && __asan_region_is_poisoned((void*)a, (size_t)n)) err("global access out of bounds", l);
        return (unsigned char*)a;
    }
    u32 need_all(u32 act, const char* what) { if (act != 0xffffffffu) err(string(what) + " without all 32 lanes"); return act; }

    void mem(const Ins& in, u32 act) {
        bool ld = in.op == LD;
        int n = in.t.w * in.vec, base = ld ? in.vec : 0;
        u64 addr[32];
        for (int l = 0; l < 32; l++) if (act >> l & 1) {
            u64 a = addr[l] = get(in.o[base], l) + get(in.o[base + 1], l);
            if (in.sp == PARAM) {
                for (int i = 0; i < in.vec; i++) { u64 v = 0; memcpy(&v, par + a + (u64)(i * in.t.w), in.t.w); set(in.o[i], l, v); }
                continue;
            }
            unsigned char* p = at(in.sp, a, n, l, !ld);
            for (int i = 0; i < in.vec; i++) {
                if (ld) { u64 v = 0; memcpy(&v, p + i * in.t.w, in.t.w); if (in.t.c == 's') v = zx((u64)sx(v, in.t.w), in.t.w < 4 ? 4 : in.t.w); set(in.o[i], l, v); }
                else { u64 v = get(in.o[2 + i], l); memcpy(p + i * in.t.w, &v, in.t.w); }
            }
        }
        if (in.sp == GLOBAL) {                        // sectors touched, against the least possible number
            u64 s[256]; int ns = 0; u64 bytes = 0;
            for (int l = 0; l < 32; l++) if (act >> l & 1) { bytes += n; u64 c = addr[l] / 32; bool seen = false; for (int i = 0; i < ns; i++) seen |= s[i] == c; if (!seen) s[ns++] = c; }
            k.count.least += (bytes + 31) / 32; k.count.sectors += ns;
        } else if (in.sp == SHARED) {                 // a group of 32/(n/4) lanes is one pass; within it a bank serves one word
            int per = n <= 4 ? 32 : 128 / n;
            for (int g = 0; g < 32; g += per) {
                std::vector<u64> bank[32];
                size_t worst = 0;
                for (int l = g; l < g + per; l++) if (act >> l & 1) for (int i = 0; i < (n + 3) / 4; i++) {
                    u64 wd = addr[l] / 4 + i; auto& b = bank[wd % 32]; bool seen = false;
                    for (u64 x : b) seen |= x == wd;
                    if (!seen) { b.push_back(wd); worst = b.size() > worst ? b.size() : worst; }
                }
                if (worst) { k.count.passes++; k.count.conflicts += worst - 1; }
            }
        }
    }
    u64 cvt(const Ins& in, u64 v) {
        Ty d = in.t, s = in.t2;
        if (s.c == 'f') {
            double x = s.w == 4 ? f32(v) : s.w == 2 ? f16(v) : f64(v);
            if (d.c == 'h') return __float2bfloat16_rn((float)x).v;
            if (d.c == 'f') return d.w == 4 ? b32((float)x) : b64(x);
            x = in.mode == 'n' ? nearbyint(x) : in.mode == 'm' ? floor(x) : in.mode == 'p' ? ceil(x) : trunc(x);
            if (isnan(x)) return 0;
            double lo = d.c == 's' ? -ldexp(1, 8 * d.w - 1) : 0, hi = d.c == 's' ? ldexp(1, 8 * d.w - 1) : ldexp(1, 8 * d.w);
            if (x < lo) return zx((u64)(int64_t)lo, d.w);
            if (x >= hi) return d.c == 's' ? zx(~0ull, d.w) >> 1 : zx(~0ull, d.w);
            return d.c == 's' ? zx((u64)(int64_t)x, d.w) : (u64)x;
        }
        if (s.c == 'e') return f16_of_e4m3(v & 255) | f16_of_e4m3(v >> 8 & 255) << 16;
        if (s.c == 'h') return b32(__uint_as_float((u32)v << 16));
        int64_t i = s.c == 's' ? sx(v, s.w) : (int64_t)zx(v, s.w);
        if (d.c == 'f') return d.w == 4 ? (s.c == 's' ? b32((float)i) : b32((float)(u64)i)) : (s.c == 's' ? b64((double)i) : b64((double)(u64)i));
        return zx((u64)i, d.w);
    }
    u64 alu(const Ins& in, int l) {
        const Ty t = in.t;
        u64 a = get(in.o[1], l), b = in.n > 2 ? get(in.o[2], l) : 0, c = in.n > 3 ? get(in.o[3], l) : 0;
        if (t.c == 'f' && t.w == 4) {
            float x = f32(a), y = f32(b), z = f32(c);
            switch (in.op) {
            case ADD: return b32(x + y); case SUB: return b32(x - y); case MUL: return b32(x * y); case FMA: case MAD: return b32(fmaf(x, y, z));
            case DIV: return b32(x / y); case NEG: return a ^ 0x80000000u; case ABS: return a & 0x7fffffffu;
            case MIN: return b32(fminf(x, y)); case MAX: return b32(fmaxf(x, y));
            case EX2: { float r = exp2f(x); return b32(fabsf(r) < 1.17549435e-38f ? 0.0f : r); }
            case LG2: return b32(log2f(x)); case RCP: return b32(1.0f / x); case RSQRT: return b32(1.0f / sqrtf(x)); case SQRT: return b32(sqrtf(x));
            default: break;
            }
        } else if (t.c == 'f') {
            double x = f64(a), y = f64(b), z = f64(c);
            switch (in.op) {
            case ADD: return b64(x + y); case SUB: return b64(x - y); case MUL: return b64(x * y); case FMA: return b64(fma(x, y, z)); case DIV: return b64(x / y);
            case NEG: return b64(-x); case ABS: return b64(fabs(x)); case MIN: return b64(fmin(x, y)); case MAX: return b64(fmax(x, y)); default: break;
            }
        } else {
            bool s = t.c == 's';
            int w = t.w;
            int64_t x = s ? sx(a, w) : (int64_t)zx(a, w), y = s ? sx(b, w) : (int64_t)zx(b, w);
            switch (in.op) {
            case ADD: return zx(a + b, w); case SUB: return zx(a - b, w);
            case MUL: case MAD: {
                if (in.hi) { __int128 q = s ? (__int128)x * y : (__int128)((unsigned __int128)(u64)x * (u64)y); return zx((u64)(q >> 8 * w) + (in.op == MAD ? c : 0), w); }
                return zx((u64)x * (u64)y + (in.op == MAD ? c : 0), in.wide ? 2 * w : w);
            }
            case DIV: case REM: if (!y) err("integer division by zero", l);
                return in.op == DIV ? zx(s ? (u64)(x / y) : (u64)x / (u64)y, w) : zx(s ? (u64)(x % y) : (u64)x % (u64)y, w);
            case NEG: return zx((u64)-x, w); case ABS: return zx((u64)(x < 0 ? -x : x), w);
            case MIN: return zx((s ? x < y : (u64)x < (u64)y) ? a : b, w); case MAX: return zx((s ? x > y : (u64)x > (u64)y) ? a : b, w);
            case AND: return zx(a & b, w); case OR: return zx(a | b, w); case XOR: return zx(a ^ b, w); case NOT: return t.c == 'p' ? !a : zx(~a, w);
            case SHL: { u64 n = (u32)b; return n >= 8u * w ? 0 : zx(a << n, w); }
            case SHR: { u64 n = (u32)b; if (n >= 8u * w) n = s ? 8u * w - 1 : 64; return n == 64 ? 0 : s ? zx((u64)(sx(a, w) >> n), w) : zx(a, w) >> n; }
            case POPC: return (u64)__builtin_popcountll(zx(a, w)); case CLZ: return zx(a, w) ? (u64)__builtin_clzll(zx(a, w)) - (64 - 8u * w) : 8u * w;
            case BFI: { u64 at = c & 255, n = get(in.o[4], l) & 255, m = at > 63 ? 0 : (n > 63 ? ~0ull : (1ull << n) - 1) << at; return zx((b & ~m) | (m ? a << at & m : 0), w); }
            case PRMT: { u64 both = zx(a, 4) | zx(b, 4) << 32, r = 0; for (int i = 0; i < 4; i++) { u64 q = c >> 4 * i & 15, by = both >> 8 * (q & 7) & 255; if (q & 8) by = by & 128 ? 255 : 0; r |= by << 8 * i; } return r; }
            default: break;
            }
        }
        err("unsupported type for this instruction", l);
    }
    bool compare(const Ins& in, u64 a, u64 b) {
        char c = in.cc;
        Ty t = in.t;
        if (t.c == 'f') {
            double x = t.w == 4 ? f32(a) : f64(a), y = t.w == 4 ? f32(b) : f64(b);
            if (isnan(x) || isnan(y)) return in.un || c == '2';
            return c == '1' ? true : c == '2' ? false : c == 'l' ? x < y : c == 'L' ? x <= y : c == 'g' ? x > y : c == 'G' ? x >= y : c == 'e' ? x == y : x != y;
        }
        bool s = t.c == 's';
        int64_t x = s ? sx(a, t.w) : (int64_t)zx(a, t.w), y = s ? sx(b, t.w) : (int64_t)zx(b, t.w);
        bool lt = s ? x < y : (u64)x < (u64)y;
        return c == 'e' ? x == y : c == 'n' ? x != y : c == 'l' ? lt : c == 'G' ? !lt : c == 'L' ? lt || x == y : !(lt || x == y);
    }
    void warp_op(const Ins& in, u32 act) {
        if (in.op == SHFL) {
            bool two = in.n == 6;
            int q = two ? 2 : 1;
            u64 v[32];
            for (int l = 0; l < 32; l++) v[l] = act >> l & 1 ? get(in.o[q], l) : 0;
            for (int l = 0; l < 32; l++) if (act >> l & 1) {
                u32 mask = (u32)get(in.o[q + 3], l), c = (u32)get(in.o[q + 2], l), b = (u32)get(in.o[q + 1], l) & 31, seg = c >> 8 & 31, cl = c & 31;
                if ((mask & act) != mask || !(mask >> l & 1)) err("shfl.sync: lanes of the mask are not here together", l);
                int hi = (int)((l & seg) | (cl & ~seg)), j;
                bool ok;
                if (in.mode == 'b') { j = l ^ (int)b; ok = j <= hi; }
                else if (in.mode == 'd') { j = l + (int)b; ok = j <= hi; }
                else if (in.mode == 'u') { j = l - (int)b; ok = j >= hi; }
                else { j = (int)((l & seg) | (b & ~seg)); ok = j <= hi; }
                if (!ok) j = l;
                if (!(mask >> j & 1)) err("shfl.sync reads a lane outside its mask", l);
                set(in.o[0], l, v[j]);
                if (two) set(in.o[1], l, ok);
            }
        } else if (in.op == VOTE) {
            u32 r = 0;
            for (int l = 0; l < 32; l++) if (act >> l & 1 && get(in.o[1], l)) r |= 1u << l;
            for (int l = 0; l < 32; l++) if (act >> l & 1) {
                u32 mask = (u32)get(in.o[2], l);
                if ((mask & act) != mask) err("vote.sync: lanes of the mask are not here together", l);
                set(in.o[0], l, in.mode == 'B' ? r & mask : in.mode == 'Y' ? (r & mask) != 0 : (r & mask) == mask);
            }
        } else if (in.op == MMA) {
            need_all(act, "mma.sync");
            if (in.mod.find("m16n8k16.row.col.f32.bf16.bf16.f32") == string::npos) err("unsupported mma shape");
            float d[32][4]; u32 a[32][4], b[32][2];
            simt::MmaArg arg[32];
            static simt::Thread th[32];
            for (int l = 0; l < 32; l++) {
                for (int i = 0; i < 4; i++) { a[l][i] = (u32)get(in.o[4 + i], l); d[l][i] = f32(get(in.o[10 + i], l)); }
                for (int i = 0; i < 2; i++) b[l][i] = (u32)get(in.o[8 + i], l);
                arg[l] = simt::MmaArg{d[l], a[l], b[l]};
                th[l].arg = &arg[l];
            }
            simt::mma_fn(0xffffffffu, th);
            for (int l = 0; l < 32; l++) for (int i = 0; i < 4; i++) set(in.o[i], l, b32(d[l][i]));
        } else if (in.op == LDSM) {
            need_all(act, "ldmatrix");
            int num = in.mod.find(".x4") != string::npos ? 4 : in.mod.find(".x2") != string::npos ? 2 : 1;
            bool tr = in.mod.find(".trans") != string::npos;
            u32 out[4][32];
            for (int i = 0; i < num; i++) {
                uint16_t m[8][8];
                for (int r = 0; r < 8; r++) memcpy(m[r], at(SHARED, get(in.o[num], i * 8 + r) + in.o[num + 1].v, 16, i * 8 + r, false), 16);
                for (int l = 0; l < 32; l++) { int r = l / 4, c = l % 4 * 2; out[i][l] = tr ? m[c][r] | (u32)m[c + 1][r] << 16 : m[r][c] | (u32)m[r][c + 1] << 16; }
            }
            for (int i = 0; i < num; i++) for (int l = 0; l < 32; l++) set(in.o[i], l, out[i][l]);
        }
    }
    void cpasync(const Ins& in, u32 act) {
        for (int l = 0; l < 32; l++) if (act >> l & 1) {
            if (in.mode == 'c') { W->group[l]++; continue; }
            if (in.mode == 'w' || in.mode == 'W') {
                bool all = in.mode == 'W';
                int keep = all ? -1 : (int)get(in.o[0], l);
                auto& v = W->cp[l];
                while (!v.empty() && (all || v[0].group < (int)W->group[l] - keep)) {
                    unsigned char* d = at(SHARED, v[0].dst, v[0].full, l, true);
                    memset(d, 0, (size_t)v[0].full);
                    if (v[0].n) memcpy(d, at(GLOBAL, v[0].src, v[0].n, l, false), (size_t)v[0].n);
                    v.erase(v.begin());
                }
                continue;
            }
            u32 d = (u32)(get(in.o[0], l) + in.o[1].v);
            int full = (int)in.o[4].v, n = in.n > 5 ? (int)get(in.o[5], l) : full;
            memset(at(SHARED, d, full, l, true), 0xff, (size_t)full);
            W->cp[l].push_back(Pend{d, get(in.o[2], l) + in.o[3].v, n, (int)W->group[l], full});
        }
    }
    // One instruction for the lanes of the warp with the lowest pc. False: the warp waits at a barrier or is done.
    bool step() {
        int pc = 1 << 30;
        for (int l = 0; l < 32; l++) if (W->run >> l & 1 && W->pc[l] < pc) pc = W->pc[l];
        u32 here = 0, act = 0;
        for (int l = 0; l < 32; l++) if (W->run >> l & 1 && W->pc[l] == pc) { here |= 1u << l; W->pc[l]++; }
        const Ins& in = *(I = &k.code[(size_t)pc]);
        act = here;
        if (in.pred >= 0) for (int l = 0; l < 32; l++) if (here >> l & 1 && (W->R[(size_t)in.pred * 32 + l] != 0) == in.neg) act &= ~(1u << l);
        k.count.ins++;
        if (!act) return true;
        auto each = [&](auto f) { for (int l = 0; l < 32; l++) if (act >> l & 1) f(l); };
        switch (in.op) {
        case MOV:
            if (in.n == 3 && in.t.w == 8 && in.pack) each([&](int l) { set(in.o[0], l, zx(get(in.o[1], l), 4) | get(in.o[2], l) << 32); });
            else if (in.n == 3 && in.t.w == 8) each([&](int l) { u64 v = get(in.o[2], l); set(in.o[0], l, zx(v, 4)); set(in.o[1], l, v >> 32); });
            else if (in.n == 3 && in.pack) each([&](int l) { set(in.o[0], l, zx(get(in.o[1], l), 2) | zx(get(in.o[2], l), 2) << 16); });
            else if (in.n == 3) each([&](int l) { u64 v = get(in.o[2], l); set(in.o[0], l, zx(v, 2)); set(in.o[1], l, zx(v >> 16, 2)); });
            else each([&](int l) { set(in.o[0], l, in.t.c == 'p' ? get(in.o[1], l) : zx(get(in.o[1], l), in.t.w)); });
            break;
        case LD: case ST: mem(in, act); break;
        case SELP: each([&](int l) { set(in.o[0], l, get(in.o[get(in.o[3], l) ? 1 : 2], l)); }); break;
        case SETP: each([&](int l) {
            bool r = compare(in, get(in.o[1], l), get(in.o[2], l));
            if (!in.boolop.empty()) { bool q = get(in.o[3], l) != 0; r = in.boolop == "and" ? r && q : in.boolop == "or" ? r || q : r != q; }
            set(in.o[0], l, r); }); break;
        case CVT:
            if (in.t.c == 'h' && in.t.w == 4) each([&](int l) { set(in.o[0], l, (u64)__float2bfloat16_rn(f32(get(in.o[1], l))).v << 16 | __float2bfloat16_rn(f32(get(in.o[2], l))).v); });
            else each([&](int l) { set(in.o[0], l, cvt(in, get(in.o[1], l))); });
            break;
        case CVTA: each([&](int l) { u64 v = get(in.o[1], l); if (in.sp == SHARED) v = in.to ? v - SGEN : v + SGEN; set(in.o[0], l, v); }); break;
        case BRA: each([&](int l) { W->pc[l] = in.target; }); break;
        case RET: W->run &= ~act; each([&](int l) { if (!W->cp[l].empty()) err("thread ends with cp.async never waited for", l); }); break;
        case BAR:
            if (act != W->run) err("bar.sync while other lanes of the warp are elsewhere");
            W->bar = in.n ? (int)get(in.o[0], __builtin_ctz(act)) : 0; W->barpc = pc;
            return false;
        case WSYNC: if (((u32)get(in.o[0], __builtin_ctz(act)) & W->run) != act) err("bar.warp.sync: lanes of the mask are not here together"); W->wep++; break;
        case SHFL: case VOTE: case MMA: case LDSM: warp_op(in, act); break;
        case CPA: cpasync(in, act); break;
        case FENCE: break;
        case ATOM: each([&](int l) {                  // 32-bit add, max, exch, cas; red has no destination
            int q = in.text.find("red") == in.text.find_first_not_of("@!%p0123456789 \t") ? 0 : 1;
            unsigned char* p = at(in.sp, get(in.o[q], l) + get(in.o[q + 1], l), in.t.w, l, true, true);
            u64 old = 0, v = get(in.o[q + 2], l), r = v;
            memcpy(&old, p, in.t.w);
            if (in.t.w != 4) err("only 32-bit atomics", l);
            if (in.mod.find(".add") != string::npos) r = in.t.c == 'f' ? b32(f32(old) + f32(v)) : zx(old + v, 4);
            else if (in.mod.find(".max") != string::npos) r = (in.t.c == 's' ? sx(old, 4) > sx(v, 4) : old > v) ? old : v;
            else if (in.mod.find(".cas") != string::npos) r = old == zx(v, 4) ? get(in.o[q + 3], l) : old;
            else if (in.mod.find(".exch") == string::npos) err("unsupported atomic", l);
            memcpy(p, &r, 4);
            if (q) set(in.o[0], l, old); });
            break;
        default: each([&](int l) { set(in.o[0], l, alu(in, l)); });
        }
        return W->run != 0;
    }
    void go() {
        int n = (int)(block.x * block.y * block.z), nw = (n + 31) / 32;
        std::fill(sm.begin(), sm.end(), (unsigned char)0xff);
        for (auto& s : sh) s = Shadow{};
        w.assign((size_t)nw, Warp{});
        for (int i = 0; i < nw; i++) {
            Warp& x = w[(size_t)i];
            x.R.assign((size_t)k.nreg * 32, 0xdeadbeefdeadbeefull);
            x.id = i; x.lanes = n - i * 32 < 32 ? n - i * 32 : 32;
            x.run = x.lanes == 32 ? 0xffffffffu : (1u << x.lanes) - 1;
            memset(x.pc, 0, sizeof x.pc); memset(x.group, 0, sizeof x.group);
        }
        for (;;) {
            int can = 0, wait = 0, pick = -1;
            for (int i = 0; i < nw; i++) { if (!w[(size_t)i].run) continue; if (w[(size_t)i].bar >= 0) wait++; else can++; }
            if (!can && !wait) return;
            if (!can) {
                int pc = -1;
                for (Warp& x : w) if (x.run) { if (pc >= 0 && x.barpc != pc && x.bar == 0) { W = &x; err("warps meet at different bar.sync"); } pc = x.barpc; x.bar = -1; x.wep++; }
                for (Warp& x : w) if (!x.run && x.lanes) { W = &x; err("a warp ended while others wait at bar.sync"); }
                ep++;
                continue;
            }
            int skip = simt::g.order == simt::RANDOM ? (int)(simt::rnd() % can) : simt::g.order == simt::REVERSE ? can - 1 : 0;
            for (int i = 0; i < nw && pick < 0; i++) if (w[(size_t)i].run && w[(size_t)i].bar < 0 && skip-- == 0) pick = i;
            W = &w[(size_t)pick];
            for (u32 left = simt::g.order == simt::RANDOM ? simt::rnd() % 64 + 1 : ~0u; left-- && step();) {}
        }
    }
};

// The kernel of that symbol; its file is read when it is asked for first.
Kernel& find(const char* symbol) {
    static struct { const char* path; string text; } files[] = {{getenv("TV_PTX"), ""}, TV_PTX_FILES};
    auto it = kernels.find(symbol);
    for (auto& f : files) {
        if (it != kernels.end()) break;
        if (!f.path) continue;
        if (f.text.empty()) {
            FILE* in = fopen(f.path, "rb");
            if (!in) die(string("cannot open ") + f.path);
            char part[65536];
            for (size_t n; (n = fread(part, 1, sizeof part, in)) > 0;) f.text.append(part, n);
            fclose(in);
        }
        if (f.text.find(string(".entry ") + symbol + "(") == string::npos) continue;
        Parser p;
        p.file(f.text);
        it = kernels.find(symbol);
    }
    if (it == kernels.end()) die(string("no entry ") + symbol);
    return it->second;
}

bool run(const void* key, dim3 grid, dim3 block, size_t dyn, const void* par, size_t npar) {
    Dl_info di;
    if (!dladdr(key, &di) || !di.dli_sname) die("a kernel without a symbol (-rdynamic)");
    if (strstr(di.dli_sname, "stand_in_")) return false;  // for a library's kernel: in fibers
    Kernel& k = find(di.dli_sname);
    if (k.pbytes != npar) die("parameter size of " + k.name);
    k.count.launches++;
    Block b(k, grid, block, dyn, par);
    u64 nb = (u64)grid.x * grid.y * grid.z;
    for (u64 i = 0; i < nb; i++) {
        u64 j = simt::g.order == simt::REVERSE ? nb - 1 - i : i;
        b.bid = uint3{(unsigned)(j % grid.x), (unsigned)(j / grid.x % grid.y), (unsigned)(j / ((u64)grid.x * grid.y))};
        b.go();
        simt::g.stats.blocks++;
        simt::g.stats.threads += block.x * block.y * block.z;
    }
    return true;
}

// Where TV_PTX_COUNTS names a file, what each kernel did goes there when the program ends (check_counts.sh).
struct Hook {
    Hook() { simt::g.ptx = run; }
    ~Hook() {
        const char* path = getenv("TV_PTX_COUNTS");
        FILE* f = path ? fopen(path, "a") : nullptr;
        for (auto& it : kernels) {
            const Count& c = it.second.count;
            if (f && c.launches)
                fprintf(f, "%s %lu %lu %lu %lu %lu\n", it.first.c_str(), (unsigned long)c.ins, (unsigned long)c.sectors, (unsigned long)c.least,
                        (unsigned long)c.passes, (unsigned long)c.conflicts);
        }
        if (f) fclose(f);
    }
} hook;
}  // namespace
