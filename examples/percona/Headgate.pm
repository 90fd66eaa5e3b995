# Percona Toolkit's pt-archiver and pt-online-schema-change: check before each chunk.
#
#   export HEADGATE_URL=http://127.0.0.1:8087 HEADGATE_APP=orders:pt-archiver HEADGATE_DATABASE=main
#   PERL5LIB=examples/percona pt-archiver --source D=shop,t=orders,m=Headgate --limit 500 --commit-each …
#   pt-online-schema-change --plugin examples/percona/Headgate.pm …
#
# Perl's own modules only. Status 200 admits, and nothing else does. A rejection says when to
# retry. Without an answer for HEADGATE_UNAVAILABLE_AFTER seconds (10) the tool ends, or goes on
# unthrottled if HEADGATE_ON_UNAVAILABLE is `open`.
package Headgate;

use strict;
use warnings;
use HTTP::Tiny;
use Time::HiRes ();

my $MAX_PAUSE_S = 30;

sub gate {
   my ($class, $app) = @_;
   my $self = bless {
      app       => $ENV{HEADGATE_APP} || $app,
      database  => $ENV{HEADGATE_DATABASE} || 'main',
      url       => $ENV{HEADGATE_URL} || 'http://127.0.0.1:8087',
      patience  => $ENV{HEADGATE_UNAVAILABLE_AFTER} || 10,
      goes_open => ($ENV{HEADGATE_ON_UNAVAILABLE} || 'closed') eq 'open',
      http      => HTTP::Tiny->new(timeout => 1, keep_alive => 1, default_headers => {
         $ENV{HEADGATE_TOKEN} ? (Authorization => "Bearer $ENV{HEADGATE_TOKEN}") : (),
      }),
   }, $class;
   $self->{check_url} = sprintf '%s/v1/check?app=%s&database=%s', $self->{url},
      map { _escaped($_) } $self->{app}, $self->{database};
   return $self;
}

sub _escaped {
   my ($text) = @_;
   $text =~ s/([^A-Za-z0-9\-._~])/sprintf '%%%02X', ord $1/ge;
   return $text;
}

# One check: 1 for admitted, 0 for rejected, undef for no answer; and how many seconds to wait.
sub check {
   my ($self) = @_;
   my $answer = $self->{http}->get($self->{check_url});
   my $status = $answer->{status};
   return (1, 0) if $status == 200;
   die "headgate: $self->{url} does not accept the request: $status $answer->{content}\n"
      if $status =~ /^(400|401|403)$/;
   my $pause = $answer->{headers}{'retry-after'} || 1;
   $pause = $MAX_PAUSE_S if $pause !~ /^\d+$/ || $pause > $MAX_PAUSE_S;
   return ($status =~ /^(404|417|421|424|429)$/ ? 0 : undef, $pause);
}

# As check(), but after too long without an answer: admitted if open, else the tool ends.
sub permission {
   my ($self) = @_;
   my ($admitted, $pause) = $self->check();
   if (defined $admitted) {
      delete $self->{silent_since};
      return ($admitted, $pause);
   }
   $self->{silent_since} ||= Time::HiRes::time();
   my $silent = Time::HiRes::time() - $self->{silent_since};
   return (0, $pause) if $silent < $self->{patience};
   return (1, 0) if $self->{goes_open};
   die sprintf "headgate: no agent answered at %s for %.1f s; start one, or set HEADGATE_URL\n",
      $self->{url}, $silent;
}

sub wait_until_admitted {
   my ($self) = @_;
   while (1) {
      my ($admitted, $pause) = $self->permission();
      return if $admitted;
      Time::HiRes::sleep($pause);
   }
}

# --- pt-archiver: m=Headgate in the source ----------------------------------------------------

sub new {
   my ($class, %args) = @_;
   my $self = $class->gate('pt-archiver');
   my $options = $args{OptionParser};
   $self->{dbh} = $args{dbh};
   $self->{limit} = $options->get('limit') || 1;
   $self->{locks} = $options->get('for-update') || $options->get('share-lock');
   $self->{rows} = 0;
   return $self;
}

# Before the first row of each chunk: it was read, and nothing is changed yet.
sub is_archivable {
   my ($self) = @_;
   return 1 if $self->{rows}++ % $self->{limit};
   my ($admitted, $pause) = $self->permission();
   return 1 if $admitted;
   # Ends the transaction that only read: an old snapshot keeps the server from purging.
   $self->{dbh}->commit() if !$self->{dbh}{AutoCommit} && !$self->{locks};
   Time::HiRes::sleep($pause);
   $self->wait_until_admitted();
   return 1;
}

sub before_begin       { }
sub before_delete      { }
sub before_bulk_delete { }
sub before_insert      { }
sub custom_sth         { }
sub after_finish       { }

# --- pt-online-schema-change: --plugin ---------------------------------------------------------

package pt_online_schema_change_plugin;

use strict;
use warnings;

sub new {
   my ($class, %args) = @_;
   return bless { gate => Headgate->gate('pt-online-schema-change'), by_nibble => 0 }, $class;
}

sub before_copy_rows {
   my ($self) = @_;
   $self->{gate}->wait_until_admitted();
}

# Newer versions: after each chunk, whether or not there are replicas.
sub on_copy_rows_after_nibble {
   my ($self) = @_;
   $self->{by_nibble} = 1;
   $self->{gate}->wait_until_admitted();
}

# Older versions, with replicas: the tool looks at their lag after each chunk, and waits (with a
# keep-alive) while it is above --max-lag. A rejection is a lag without end.
sub get_slave_lag {
   my ($self) = @_;
   return sub {
      return 0 if $self->{by_nibble};
      my ($admitted) = $self->{gate}->permission();
      return $admitted ? 0 : 86_400;
   };
}

1;
