//! What inboxes and outboxes promise, over any database.

pub(crate) mod sink;

mod inbox;
mod outbox;

use std::time::Duration;

use lockgate_core::Message;
use lockgate_sql::{
    Error, Forwarder, ForwarderOptions, OutboxCounts, ParkedRow, RowId, StartError,
};

use self::sink::TestSink;

/// A database with both tables and a table `effects (message text)`. All of it is empty.
pub(crate) trait Database {
    /// Handles a message: records it, writes an effect, and commits or fails. Whether it had an effect.
    async fn handle(&self, consumer: &str, message: &str, succeeds: bool) -> Result<bool, String>;

    async fn effects(&self) -> Vec<String>;

    /// Makes the inbox older.
    async fn age_inbox(&self, by: Duration);

    async fn prune(&self, consumer: &str, older_than: Duration, max: u32) -> u64;

    async fn forget(&self, consumer: &str, message: &str) -> bool;

    /// Gives the inbox another form, and makes it again.
    async fn create_over_another_table(&self) -> Error;

    /// Enqueues messages in one transaction, and commits it or not.
    async fn enqueue(&self, messages: &[Message], commit: bool) -> Vec<RowId>;

    async fn forward(
        &self,
        sink: TestSink,
        options: ForwarderOptions,
    ) -> Result<Forwarder, StartError>;

    async fn counts(&self) -> OutboxCounts;

    async fn parked(&self, after: Option<RowId>, max: u32) -> Vec<ParkedRow>;

    async fn retry(&self, row: RowId) -> bool;

    async fn discard(&self, row: RowId) -> bool;

    /// Makes the claims of the outbox older.
    async fn age_claims(&self, by: Duration);

    /// As an operator may who knows nothing of `discard`.
    async fn delete_parked_by_hand(&self);

    /// Writes something into a column of all rows of the outbox.
    async fn spoil(&self, column: &str, value: &str);
}

/// Runs all of it, each over a database of its own, which are named as they run.
pub(crate) async fn run<D: Database>(mut new: impl AsyncFnMut() -> D) {
    macro_rules! cases {
        ($($module:ident :: $case:ident)+) => {$(
            println!("{}", stringify!($case));
            $module::$case(&new().await).await;
        )+};
    }
    cases! {
        inbox::a_message_has_one_effect
        inbox::an_effect_that_fails_leaves_no_trace
        inbox::rows_are_pruned_by_age_in_batches
        inbox::a_message_can_be_forgotten
        inbox::another_table_is_refused
        outbox::what_is_committed_is_sent_whole_and_nothing_else
        outbox::keys_keep_their_order_whatever_fails
        outbox::a_lost_answer_makes_no_second_message
        outbox::a_refused_row_waits_for_an_operator_with_its_key_behind_it
        outbox::a_discarded_row_lets_its_key_go_on
        outbox::rows_behind_one_that_was_deleted_by_hand_go_on_with_the_next_of_their_key
        outbox::a_row_in_doubt_is_not_sent_blindly
        outbox::a_row_that_is_no_message_is_parked
        outbox::a_large_backlog_behind_a_parked_row_stops_no_other_key
        outbox::a_large_backlog_of_one_key_holds_up_no_other_key
        outbox::a_drained_forwarder_leaves_no_claim
        outbox::a_sink_without_unique_ids_is_refused
    }
}
