//! The addresses of this host's network interfaces.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr::NonNull,
};

/// The addresses of the interfaces that are up and not loopback, in the system's order; none where it does not tell.
pub(crate) fn interfaces() -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: it writes a pointer to a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = NonNull::new(first);
    while let Some(at) = next {
        // SAFETY: an entry of the list, which lives until it is freed below.
        let entry = unsafe { at.as_ref() };
        let flags = entry.ifa_flags as libc::c_int;
        if flags & libc::IFF_UP != 0 && flags & libc::IFF_LOOPBACK == 0 {
            // SAFETY: null, or an address of the family that it names, which lives as long as its entry.
            found.extend(unsafe { address(entry.ifa_addr) });
        }
        next = NonNull::new(entry.ifa_next);
    }
    // SAFETY: from `getifaddrs`, freed once; `found` holds copies.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `at` is null or points to an address of the family that it names.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: every address begins with its family.
    match i32::from(unsafe { (*at).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`; nothing is said of its alignment.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a `sockaddr_in6`; nothing is said of its alignment.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn loopback_is_left_out() {
        assert!(super::interfaces().iter().all(|ip| !ip.is_loopback()));
    }
}
