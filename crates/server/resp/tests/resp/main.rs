//! The front end as its clients meet it: what they send, and what comes back.

mod account;
mod bad_input;
mod blocking;
mod calls;
mod differential;
mod multi_key;
mod numbering;
mod operators;
mod pipeline;
mod pubsub;
mod script_messages;
mod scripts;
mod sessions;
mod tracking;
mod transactions;
mod turns;
