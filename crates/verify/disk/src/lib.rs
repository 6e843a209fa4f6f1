//! A simulated disk: sectors behind a volatile cache ([`Device`]), and a directory of files on it
//! ([`Files`]), for whatever keeps a log.
#![forbid(unsafe_code)]

mod device;
mod fates;
mod files;

pub use device::{DEVICE_EVENTS, Device, DeviceError, DeviceFaults};
pub use fates::Fates;
pub use files::Files;
