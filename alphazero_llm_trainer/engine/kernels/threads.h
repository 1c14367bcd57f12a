/* The kernels' threads. A forward takes them with `take_threads`, splits its loops among them, and gives them back.
 *
 * Which thread computes which part differs from call to call; a part's results don't depend on it.
 */

#pragma once

#pragma GCC visibility push(hidden)

/* Items from..to of a loop, on the thread with this number (0 is the caller's). */
typedef void part(void *loop, int thread, long from, long to);

/* How many threads, up to `wanted`, the caller has until `give_threads`; 1 where others have them. */
int take_threads(int wanted);
void give_threads(int threads);

/* Do all `items` of a loop, `grain` or more at a time. Returns when all are done. */
void split(int threads, long items, long grain, part *work, void *loop);

#pragma GCC visibility pop
