/* What a decision costs: take and settle under so many budgets, hot, in one thread. The quickest of
 * many batches, by the thread's own CPU time: others have the machine, too. */
#include <time.h>

#include "support.h"

#define BATCHES 40
#define TIMES 50000u

static double clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

typedef struct bench {
    hg_region *region;
    test_policy policy;
    hg_matches matches;
    bool planned;
    uint64_t now_ns;
} bench;

static void enter_and_leave(bench *self)
{
    hg_enter(self->region, 0);
    hg_leave(self->region, 0);
}

static void take_and_settle(bench *self)
{
    hg_ask ask = {.now_ns = self->now_ns,
                  .plan_cost = 8.44,
                  .cost_ns = 700,
                  .pattern = self->planned ? 12345 : 0,
                  .workers = 1,
                  .flags = self->planned ? 0 : HG_COST_GIVEN};
    hg_answer answer;
    hg_holding holding;

    self->now_ns += 1000;
    hg_take(self->region, policy_in(&self->policy), &self->matches, &ask, &answer, &holding);
    assert(answer.verdict == HG_RUN);
    hg_settle(self->region, &holding, 600 + self->now_ns % 64, false, self->now_ns - 500);
}

/* A known pattern and plan shape, another plan cost each time. */
static void estimate(bench *self)
{
    hg_ask ask = {.plan_cost = 8.44 + (double) (self->now_ns % 1024), .pattern = 12345, .shape = 7};

    self->now_ns += hg_estimate(self->region, &ask).mean_ns % 7 + 1;
}

static double quickest_ns(bench *self, void (*step)(bench *))
{
    double least = 1e18;

    for (int batch = 0; batch < BATCHES; batch++) {
        double began = clock_ns();
        double each;

        for (uint32_t i = 0; i < TIMES; i++)
            step(self);
        each = (clock_ns() - began) / TIMES;
        least = each < least ? each : least;
    }
    return least;
}

static void measure(uint32_t budgets, bool planned, const char *name)
{
    static bench self;
    hg_sizes sizes = small_sizes();
    double enter_ns;

    self.region = make_region(&sizes);
    self.planned = planned;
    self.now_ns = SECOND;
    make_policy(&self.policy, budgets, 1);
    for (uint32_t i = 0; i < budgets; i++) {
        set_bucket(budget_in(&self.policy, i), 50000, 600000);
        set_workers(budget_in(&self.policy, i), 10);
    }
    sign_policy(&self.policy);
    assert(hg_publish(self.region, &self.policy, policy_in(&self.policy)->length, false, 0)
           == NULL);
    match_all(&self.policy, budgets, &self.matches);
    enter_ns = quickest_ns(&self, enter_and_leave);
    printf("%s: %.0f ns to take and settle; %.0f ns to enter and leave\n", name,
           quickest_ns(&self, take_and_settle), enter_ns);
    free(self.region);
}

static void measure_estimate(void)
{
    static bench self;
    hg_sizes sizes = small_sizes();
    hg_answer answer;
    hg_holding holding;

    self.region = make_region(&sizes);
    make_policy(&self.policy, 0, 0);
    sign_policy(&self.policy);
    assert(hg_publish(self.region, &self.policy, policy_in(&self.policy)->length, false, 0)
           == NULL);
    for (uint32_t i = 0; i < 100; i++) {
        hg_ask ask = {.plan_cost = 8 + i * i, .pattern = 12345, .shape = 7, .workers = 1};

        hg_take(self.region, policy_in(&self.policy), &self.matches, &ask, &answer, &holding);
        hg_settle(self.region, &holding, 5000 * (8 + i * i) * (1 + i % 3), false, i);
    }
    printf("a known pattern: %.0f ns to estimate\n", quickest_ns(&self, estimate));
    free(self.region);
}

int main(void)
{
    measure(0, true, "no budget");
    measure(1, true, "1 budget");
    measure(3, false, "3 budgets, cost given");
    measure(3, true, "3 budgets");
    measure(8, true, "8 budgets");
    measure_estimate();
    return 0;
}
