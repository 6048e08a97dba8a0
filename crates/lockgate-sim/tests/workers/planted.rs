//! Mistakes of a shell that are made on purpose. Each must be caught.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A lease is taken to last as long as the answer says, from when the answer comes.
    LateAnswersTrusted,
    /// An extension without an answer is taken for one that happened.
    ExtensionsAssumed,
    /// The messages of an answer are taken in the wrong order.
    OrderTurned,
    /// A settlement whose answer was lost is never spoken of again.
    SettlesForgotten,
    /// Messages are acknowledged as soon as they come.
    AcknowledgedFirst,
    /// A handler goes on when it is cancelled, and believes that it is current.
    CancelsIgnored,
}
