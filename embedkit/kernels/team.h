/* Threads that share one run. Its own thread, the leader, goes through the steps of the network; each is
 * divided into parts, which the leader and the threads that help claim one by one. The leader waits for claimed
 * parts only, so a run ends even if no helper ever arrives. Plain C, like model.h. */

#ifndef EMBEDKIT_TEAM_H
#define EMBEDKIT_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <sched.h>
#endif

/* ---- atomic operations, sequentially consistent ---- */

#if defined(_MSC_VER) && !defined(__clang__)
#include <intrin.h>
typedef volatile long long Atomic;
static inline int64_t read_atomic(Atomic *value) { return _InterlockedOr64(value, 0); }
static inline void write_atomic(Atomic *value, int64_t to) { _InterlockedExchange64(value, to); }
static inline int64_t add_atomic(Atomic *value, int64_t more) { return _InterlockedExchangeAdd64(value, more); }
static inline bool replace_atomic(Atomic *value, int64_t from, int64_t to) {
    return _InterlockedCompareExchange64(value, to, from) == from;
}
#else
typedef int64_t Atomic;
static inline int64_t read_atomic(Atomic *value) { return __atomic_load_n(value, __ATOMIC_SEQ_CST); }
static inline void write_atomic(Atomic *value, int64_t to) { __atomic_store_n(value, to, __ATOMIC_SEQ_CST); }
static inline int64_t add_atomic(Atomic *value, int64_t more) {
    return __atomic_fetch_add(value, more, __ATOMIC_SEQ_CST);
}
static inline bool replace_atomic(Atomic *value, int64_t from, int64_t to) {
    return __atomic_compare_exchange_n(value, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
#endif

/* Waits a moment: briefly at first, then by letting other threads run. */
static inline void pause_briefly(int times) {
    enum { SPINS = 2000 };
    if (times > SPINS) {
#ifdef _WIN32
        SwitchToThread();
#else
        sched_yield();
#endif
        return;
    }
#if (defined(__x86_64__) || defined(__i386__)) && !defined(_MSC_VER)
    __builtin_ia32_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
    __asm__ volatile("yield");
#endif
}

/* ---- the team ---- */

/* Computes the units of a step from `first` up to, not including, `end`. `seat` is the number of the thread in
 * its team: no two threads have the same one at a time. */
typedef void Work(const void *step, int first, int end, int seat);

typedef struct {
    int seats;        /* threads that can take part, the leader included */
    Atomic taken;     /* seats of helpers so far */
    Atomic ticket;    /* the number of the step, and in the lower 32 bits its parts that nobody has claimed */
    Atomic finished;  /* parts of the step that are computed */
    Atomic is_closed; /* helpers leave */
    Work *work;       /* of the step, as are the following */
    const void *step;
    int units, parts;
} Team;

/* Computes one part of the current step; false if none is left. */
static inline bool take_part(Team *team, int seat) {
    const int64_t ticket = read_atomic(&team->ticket), left = ticket & UINT32_MAX;
    if (left == 0 || !replace_atomic(&team->ticket, ticket, ticket - 1)) return left != 0;
    /* The leader waits for this part, so the step cannot change before it is finished. */
    const int64_t units = team->units, parts = team->parts;
    team->work(team->step, (int)(units * (left - 1) / parts), (int)(units * left / parts), seat);
    add_atomic(&team->finished, 1);
    return true;
}

/* Computes all units of a step, alone without a team. */
static inline void share(Team *team, int units, Work *work, const void *step) {
    enum { PARTS_OF_A_THREAD = 3 }; /* so that a thread that was interrupted delays the others less */
    if (!team || units < 2) {
        if (units > 0) work(step, 0, units, 0);
        return;
    }
    const int most = team->seats * PARTS_OF_A_THREAD;
    team->work = work;
    team->step = step;
    team->units = units;
    team->parts = units < most ? units : most;
    write_atomic(&team->finished, 0);
    const int64_t number = (read_atomic(&team->ticket) >> 32) + 1;
    write_atomic(&team->ticket, number << 32 | team->parts);
    while (take_part(team, 0)) continue;
    for (int times = 0; read_atomic(&team->finished) < team->parts; times++) pause_briefly(times);
}

/* Takes part in all steps until the team is closed. */
static inline void assist(Team *team) {
    const int64_t seat = add_atomic(&team->taken, 1) + 1;
    if (seat >= team->seats) return;
    for (int times = 0; !read_atomic(&team->is_closed); times++)
        if (take_part(team, (int)seat))
            times = 0;
        else
            pause_briefly(times);
}

#endif
