//! `MMAP`: stays in the file's page cache; packed anew whenever it is multiplied, by everyone.

use super::{BufferType, Extent, Home, Request, whole};

pub(super) static TYPE: BufferType = BufferType {
    name: "MMAP",
    summary: "left in the file's page cache, packed whenever it is used",
    is_family: false,
    place,
};

fn place(request: &Request<'_>) -> Vec<Extent> {
    whole(request, Home::File)
}
