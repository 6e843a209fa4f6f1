//! What files do that no log shows.

use crate::{Device, DeviceFaults};

use super::*;

/// Does one request to its end.
fn end(files: &mut Files, request: Request) -> Result<(), DiskError> {
    files.submit(Ticket(1), request);
    loop {
        if let Some(completion) = files.step() {
            return completion.result;
        }
    }
}

/// A name that is gone may be there again until the directory is flushed, so its room is taken until then,
/// or until somebody needs it.
#[test]
fn a_disk_without_room_gives_out_that_of_files_that_were_removed() {
    let device = Device::new(4 * BLOCK as usize, 512, DeviceFaults::default(), 1);
    let mut files = Files::new(device, 1);
    let zero = |file: &str, blocks: u32| Request::Zero {
        file: file.into(),
        offset: 0,
        bytes: blocks * BLOCK as u32,
        flush: true,
    };
    assert_eq!(end(&mut files, Request::Create { file: "one".into() }), Ok(()));
    assert_eq!(end(&mut files, zero("one", 3)), Ok(()));
    assert_eq!(end(&mut files, Request::FlushDirectory), Ok(()));
    assert_eq!(end(&mut files, Request::Remove { file: "one".into() }), Ok(()));
    assert_eq!(files.room(), BLOCK);
    assert_eq!(end(&mut files, Request::Create { file: "two".into() }), Ok(()));
    assert_eq!(end(&mut files, zero("two", 5)), Err(DiskError::Full));
    assert_eq!(end(&mut files, zero("two", 4)), Ok(()));
    assert_eq!(files.room(), 0);
}
