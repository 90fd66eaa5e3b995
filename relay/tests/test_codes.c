/* Every cause and every loss has its codes and its words (contract of the machines). */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

static void check_code(const hr_code *code)
{
    assert(strlen(code->sqlstate) == 5 && strlen(code->mysql_state) == 5);
    for (int i = 0; i < 5; i++) {
        assert(isdigit((unsigned char) code->sqlstate[i])
               || isupper((unsigned char) code->sqlstate[i]));
        assert(isdigit((unsigned char) code->mysql_state[i])
               || isupper((unsigned char) code->mysql_state[i]));
    }
}

static void every_cause_has_its_codes(void)
{
    for (int cause = 0; cause < HR_CAUSES; cause++) {
        check_code(&hr_code_of_cause[cause]);
        assert(cause == HR_BY_NOTHING || hr_code_of_cause[cause].mysql >= 1000);
    }
    for (int cause = HR_BY_BUDGET; cause <= HR_BY_LOSS; cause++) {
        assert(strcmp(hr_code_of_cause[cause].sqlstate, "53000") == 0);
        assert(hr_code_of_cause[cause].mysql == 1205);
    }
    assert(strcmp(hr_code_of_cause[HR_BY_CANCEL].sqlstate, "57014") == 0);
    assert(hr_code_of_cause[HR_BY_CANCEL].mysql == 1317);
    assert(strcmp(hr_code_of_cause[HR_BY_LIMIT].sqlstate, "53300") == 0);
    assert(hr_code_of_cause[HR_BY_LIMIT].mysql == 1040);
}

static void every_loss_has_its_codes(void)
{
    for (int why = 0; why <= HR_LOST_KILLED; why++) {
        check_code(&hr_code_of_loss[why]);
        assert(hr_code_of_loss[why].mysql >= 1000);
    }
    assert(strcmp(hr_code_of_loss[HR_LOST_DRAIN].sqlstate, "57P01") == 0);
    assert(strcmp(hr_code_of_loss[HR_LOST_IDLE].sqlstate, "57P05") == 0);
    assert(strcmp(hr_code_of_loss[HR_LOST_STARTUP].sqlstate, "57014")
           == 0); /* as Postgres says of it */
    assert(strcmp(hr_code_of_loss[HR_LOST_MEMORY].sqlstate, "53200") == 0);
    assert(strcmp(hr_code_of_loss[HR_LOST_SERVER].sqlstate, "08006") == 0);
}

/* Each says something of its own, begins alike, and is cut where the room ends. */
static void every_loss_has_its_words(void)
{
    static char words[HR_LOST_KILLED + 1][512];
    static hr_session session;
    char small[16];

    for (int why = 0; why <= HR_LOST_KILLED; why++) {
        hr_words_of_loss(&session, (hr_lost) why, words[why], sizeof words[why]);
        assert(strncmp(words[why], "headgate: ", 10) == 0 && strlen(words[why]) > 25);
        assert(strstr(words[why], "(null)") == NULL);
        for (int other = 0; other < why; other++)
            assert(strcmp(words[why], words[other]) != 0);
        hr_words_of_loss(NULL, (hr_lost) why, small, sizeof small);
        assert(strlen(small) == sizeof small - 1);
    }
}

static void a_fault_that_the_engine_knows_is_told(void)
{
    static hr_session session;
    char words[512];

    session.fault = "primary-a (10.0.0.1:5432): connection refused";
    hr_words_of_loss(&session, HR_LOST_CONNECT, words, sizeof words);
    assert(strcmp(words,
                  "headgate: the server cannot be reached: primary-a (10.0.0.1:5432): connection "
                  "refused; reconnect later")
           == 0);
}

static void what_was_held_has_not_reached_the_server(void)
{
    static hr_session session;
    char words[512];

    session.held = session.established = true;
    hr_words_of_loss(&session, HR_LOST_SERVER, words, sizeof words);
    assert(strcmp(words,
                  "headgate: the server has closed the connection; the delayed statement did "
                  "not reach the server: reconnect and repeat it")
           == 0);
}

static void a_server_that_goes_while_signing_in_has_run_nothing(void)
{
    static hr_session session;
    char words[512];

    hr_words_of_loss(&session, HR_LOST_SERVER, words, sizeof words);
    assert(strstr(words, "no statement has run") != NULL
           && strstr(words, "may or may not") == NULL);
    session.established = true;
    hr_words_of_loss(&session, HR_LOST_SERVER, words, sizeof words);
    assert(strstr(words, "may or may not") != NULL);
    session.idle = true;
    hr_words_of_loss(&session, HR_LOST_SERVER, words, sizeof words);
    assert(
        strcmp(
            words,
            "headgate: the server has closed the connection; no statement was running: reconnect")
        == 0);
    session.fault = "the server has sent too much";
    hr_words_of_loss(&session, HR_LOST_MEMORY, words, sizeof words);
    assert(strstr(words, ": the server has sent too much; max_buffer_mb does not affect this")
           != NULL);
}

int main(void)
{
    every_cause_has_its_codes();
    every_loss_has_its_codes();
    every_loss_has_its_words();
    a_fault_that_the_engine_knows_is_told();
    what_was_held_has_not_reached_the_server();
    a_server_that_goes_while_signing_in_has_run_nothing();
    printf("test_codes: ok\n");
    return 0;
}
