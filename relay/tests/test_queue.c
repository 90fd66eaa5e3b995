/* Those who wait: order, and who is woken. */
#include "gate_inside.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t woken[16];

void hr_wake(hr_thread *owner, hr_session *session, uint64_t id)
{
    (void) owner;
    (void) session;
    woken[id]++;
}

static hr_thread thread;
static hr_waiter waiters[8];

static hr_queues *fresh(const uint8_t *priorities, uint32_t count)
{
    hr_queues *queues = hr_queues_open();

    assert(queues != NULL);
    memset(woken, 0, sizeof woken);
    memset(waiters, 0, sizeof waiters);
    for (uint32_t i = 0; i < count; i++) {
        waiters[i].thread = &thread;
        waiters[i].id = i;
        waiters[i].priority = priorities[i];
        waiters[i].sequence = hr_queue_number(queues);
        hr_queue_own(queues, &waiters[i]);
        assert(hr_queue_join(queues, 77, &waiters[i]));
    }
    return queues;
}

/* As a waiter does before it looks. */
static void look(uint32_t which)
{
    atomic_store(&waiters[which].woken, false);
}

static void the_order_is_priority_then_arrival(void)
{
    static const uint8_t priorities[] = {100, 50, 100, 0, 50};
    static const uint32_t order[] = {3, 1, 4, 0, 2};
    hr_queues *queues = fresh(priorities, 5);

    for (uint32_t i = 0; i < 5; i++) {
        hr_queue_wake(queues, 77);
        assert(woken[order[i]] == 1);
        look(order[i]);
        hr_queue_disown(queues, &waiters[order[i]]);
    }
    hr_queue_wake(queues, 77);
    assert(woken[0] + woken[1] + woken[2] + woken[3] + woken[4] == 5);
    hr_queues_close(queues);
}

static void one_that_was_woken_is_not_woken_again_until_it_looks(void)
{
    static const uint8_t priorities[] = {1, 1};
    hr_queues *queues = fresh(priorities, 2);

    hr_queue_wake(queues, 77);
    hr_queue_wake(queues, 77);
    assert(woken[0] == 1 && woken[1] == 0);
    look(0);
    hr_queue_wake(queues, 77);
    assert(woken[0] == 2);
    hr_queue_wake(queues, 78); /* nobody */
    hr_queue_disown(queues, &waiters[0]);
    assert(woken[1] == 1); /* is the first now */
    hr_queue_disown(queues, &waiters[1]);
    hr_queues_close(queues);
}

static void a_new_one_does_not_overtake_its_like(void)
{
    static const uint8_t priorities[] = {50, 50};
    hr_queues *queues = fresh(priorities, 2);

    assert(hr_queue_ahead(queues, 77, NULL, 50) && hr_queue_ahead(queues, 77, NULL, 100));
    assert(!hr_queue_ahead(queues, 77, NULL, 49) && !hr_queue_ahead(queues, 78, NULL, 100));
    assert(!hr_queue_ahead(queues, 77, &waiters[0], 50)
           && hr_queue_ahead(queues, 77, &waiters[1], 50));
    assert(hr_queue_join(queues, 78, &waiters[0])); /* moves, and keeps its arrival */
    assert(!hr_queue_ahead(queues, 77, &waiters[1], 50)
           && hr_queue_ahead(queues, 78, &waiters[1], 50));
    assert(hr_queue_join(queues, 77, &waiters[0]));
    assert(hr_queue_ahead(queues, 77, &waiters[1], 50));
    hr_queue_disown(queues, &waiters[0]);
    hr_queue_disown(queues, &waiters[1]);
    hr_queues_close(queues);
}

static void all_of_a_thread_can_be_stirred(void)
{
    static const uint8_t priorities[] = {1, 2, 3};
    hr_queues *queues = fresh(priorities, 3);
    hr_thread other = {.number = 1};

    hr_queue_leave(queues, &waiters[1]); /* waits for a time alone */
    look(0), look(1), look(2);
    memset(woken, 0, sizeof woken);
    hr_queue_stir(queues, &other);
    assert(woken[0] + woken[1] + woken[2] == 0);
    hr_queue_stir(queues, &thread);
    assert(woken[0] == 1 && woken[1] == 1 && woken[2] == 1);
    for (uint32_t i = 0; i < 3; i++)
        hr_queue_disown(queues, &waiters[i]);
    hr_queues_close(queues);
}

int main(void)
{
    the_order_is_priority_then_arrival();
    one_that_was_woken_is_not_woken_again_until_it_looks();
    a_new_one_does_not_overtake_its_like();
    all_of_a_thread_can_be_stirred();
    puts("test_queue: ok");
    return 0;
}
