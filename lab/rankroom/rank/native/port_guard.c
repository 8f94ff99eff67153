/* The ports that libraries open in a rank, closed to those that are not its own user.
 *
 * Loaded into a rank and what it starts by LD_PRELOAD. TensorFlow's server and the store of
 * torch.distributed listen on all addresses and check no one who connects. With RANKROOM_BIND set,
 * what would listen on all addresses listens on that one; a connection from this machine is
 * accepted only if the process at its other end is of the same user (or root's), and with
 * RANKROOM_PEERS set, one from another machine only if that is among them. Others are hung up on.
 *
 * What listens on one address instead of all is still found at all addresses of this machine, such as
 * the one that its name leads to: a connection to another one of them is led to it.
 *
 * NCCL's ranks connect, say where they are, and close, often before they are accepted. The other end has
 * no owner by then, so whose it was cannot be told. NCCL is given such connections all the same: where
 * its ranks meet, it takes nothing from one that does not begin with the secret number of their
 * communicator. Its data begins with a number that everybody knows; those who send data are there still.
 *
 * Ranks do not connect to a stranger of this machine who listens at a port that was chosen for one of
 * them.
 *
 * It also has the name of this host lead to RANKROOM_BIND where nothing resolves it.
 *
 * The variables are read when a port is opened or a connection comes: a rank in a job learns its
 * address after it has started.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tcp_sockets.h"

/* The name of a host, where nothing resolves it, is that address. Gloo looks it up whatever interface
 * it is told, and Horovod ends with a segmentation fault where it finds none. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    char own[256];
    const char *address = getenv("RANKROOM_BIND");
    if (!real)
        real = (int (*)(const char *, const char *, const struct addrinfo *,
                        struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
    int failed = real(name, service, hints, found);
    if (failed && name && address && gethostname(own, sizeof own) == 0 && !strcmp(name, own))
        return real(address, service, hints, found);
    return failed;
}

static int is_stream(int fd) {
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

/* The address in RANKROOM_BIND; 0 if nothing is to be guarded. */
static int own_address(struct in_addr *found) {
    const char *text = getenv("RANKROOM_BIND");
    return text && inet_pton(AF_INET, text, found) == 1;
}

static int is_loopback(struct in_addr address) {
    return (ntohl(address.s_addr) >> 24) == 127;
}

static int is_v6_only(int fd) {
    int only = 0;
    socklen_t size = sizeof only;
    getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &size);
    return only;
}

/* Whether an address is one of this machine's; all of them, as a destination, are. */
static int is_this_machines(const address_t *address) {
    struct ifaddrs *all, *each;
    struct in6_addr wanted = as_v6(address);
    struct in_addr v4;
    int found = 0;
    if (as_v4(address, &v4) ? v4.s_addr == htonl(INADDR_ANY) || is_loopback(v4)
                            : IN6_IS_ADDR_UNSPECIFIED(&wanted) || IN6_IS_ADDR_LOOPBACK(&wanted))
        return 1;
    if (getifaddrs(&all) != 0)
        return 0;
    for (each = all; each && !found; each = each->ifa_next) {
        const struct sockaddr *own = each->ifa_addr;
        if (own && (own->sa_family == AF_INET || own->sa_family == AF_INET6)) {
            address_t listed;
            memset(&listed, 0, sizeof listed);
            memcpy(&listed, own, own->sa_family == AF_INET ? sizeof listed.v4 : sizeof listed.v6);
            struct in6_addr here = as_v6(&listed);
            found = IN6_ARE_ADDR_EQUAL(&here, &wanted);
        }
    }
    freeifaddrs(all);
    return found;
}

/* Put one address in the place of all of them; 1 if it was all of them. */
static int narrow(int fd, address_t *address, struct in_addr own) {
    if (address->any.sa_family == AF_INET && address->v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
        address->v4.sin_addr = own;
        return 1;
    }
    if (address->any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&address->v6.sin6_addr)) {
        if (is_v6_only(fd))
            address->v6.sin6_addr = in6addr_loopback;
        else
            put_v4(&address->v6.sin6_addr, own);
        return 1;
    }
    return 0;
}

int bind(int fd, const struct sockaddr *given, socklen_t size) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    struct in_addr own;
    if (!real)
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    if (given && size >= sizeof(struct sockaddr_in) && size <= sizeof(address_t) &&
        own_address(&own) && is_stream(fd)) {
        address_t address;
        memset(&address, 0, sizeof address);
        memcpy(&address, given, size);
        if (narrow(fd, &address, own))
            return real(fd, &address.any, size);
    }
    return real(fd, given, size);
}

int listen(int fd, int backlog) {
    static int (*real)(int, int);
    address_t address;
    socklen_t size = sizeof address;
    struct in_addr own;
    if (!real)
        real = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
    memset(&address, 0, sizeof address);
    /* What was never bound would listen on all addresses. */
    if (own_address(&own) && is_stream(fd) && getsockname(fd, &address.any, &size) == 0 &&
        (address.any.sa_family == AF_INET || address.any.sa_family == AF_INET6) &&
        address.v4.sin_port == 0 && bind(fd, &address.any, size) != 0)
        return -1;
    return real(fd, backlog);
}

/* Whether something of this user's listens there. */
static int is_ours(const address_t *address) {
    tcp_socket_t found;
    return find_socket(address, NULL, &found) == FOUND && found.uid == geteuid();
}

/* Whether a socket may connect to an IPv4 address: not one of IPv6 that has an address of its own. */
static int speaks_v4(int fd) {
    address_t own;
    socklen_t size = sizeof own;
    struct in_addr v4;
    memset(&own, 0, sizeof own);
    if (is_v6_only(fd) || getsockname(fd, &own.any, &size) != 0)
        return 0;
    return as_v4(&own, &v4) || IN6_IS_ADDR_UNSPECIFIED(&own.v6.sin6_addr);
}

/* Change an address of this machine where nothing of this user's listens to the one where, instead of
 * on all addresses, something does; 1 if so. It must be known before the attempt: one that does not wait
 * is refused later. What a stranger has at that address meanwhile is not what is looked for. */
static int lead(int fd, address_t *address, struct in_addr own) {
    address_t instead = *address;
    struct in_addr to;
    int is_v4 = as_v4(address, &to);
    if (address->v4.sin_port == 0 || (is_v4 && to.s_addr == own.s_addr) || !is_this_machines(address))
        return 0;
    if (address->any.sa_family == AF_INET) {
        instead.v4.sin_addr = own;
    } else {
        instead.v6.sin6_scope_id = 0;
        put_v4(&instead.v6.sin6_addr, own);
        if (!is_v4 && (!speaks_v4(fd) || !is_ours(&instead)))
            instead.v6.sin6_addr = in6addr_loopback;
    }
    if (!is_ours(&instead) || is_ours(address))
        return 0;
    *address = instead;
    return 1;
}

/* Whether ranks meet at this port, which the first of them opens: that of the store of torch.distributed,
 * or one of TensorFlow's servers. */
static int is_meeting_port(const address_t *address) {
    const char *store = getenv("MASTER_PORT"), *servers = getenv("TF_CONFIG");
    unsigned port = ntohs(address->v4.sin_port);
    char listed[9]; /* as in "10.0.0.1:23456", which is JSON */
    snprintf(listed, sizeof listed, ":%u\"", port);
    return port && ((store && strtoul(store, NULL, 10) == port) || (servers && strstr(servers, listed)));
}

/* Whether a stranger of this machine listens where ranks meet: the port was chosen a while ago, and what
 * listens there is told, and sends, what ranks send one another. */
static int is_a_strangers(const address_t *address) {
    tcp_socket_t found;
    return is_meeting_port(address) && is_this_machines(address) &&
           find_socket(address, NULL, &found) == FOUND && found.uid != geteuid() && found.uid != 0;
}

int connect(int fd, const struct sockaddr *given, socklen_t size) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    struct in_addr own;
    if (!real)
        real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (given && size <= sizeof(address_t) &&
        ((size >= sizeof(struct sockaddr_in) && given->sa_family == AF_INET) ||
         (size >= sizeof(struct sockaddr_in6) && given->sa_family == AF_INET6)) &&
        own_address(&own) && is_stream(fd)) {
        address_t address;
        int before = errno;
        memset(&address, 0, sizeof address);
        memcpy(&address, given, size);
        int is_led = lead(fd, &address, own);
        if (is_a_strangers(&address)) {
            errno = ECONNREFUSED;
            return -1;
        }
        errno = before;
        if (is_led)
            return real(fd, &address.any, size);
    }
    return real(fd, given, size);
}

/* GONE: it was closed there, and has no owner any more. */
enum owner { OURS, A_STRANGERS, GONE, FROM_ELSEWHERE, UNTOLD };

/* Whose the other end of a connection is: this user's or root's, or a stranger's. What comes to
 * loopback comes from this machine, whatever address it says it comes from: a program may choose any
 * of the machine's own. */
static enum owner owner_of(const address_t *peer, const address_t *here) {
    tcp_socket_t found;
    struct in_addr to;
    int to_loopback = as_v4(here, &to) ? is_loopback(to) : IN6_IS_ADDR_LOOPBACK(&here->v6.sin6_addr);
    enum answer answer = find_socket(peer, here, &found);
    if (answer == FOUND && found.is_closed)
        return GONE;
    if (answer == FOUND)
        return found.uid == geteuid() || found.uid == 0 ? OURS : A_STRANGERS;
    if (answer == FAILED)
        return A_STRANGERS;
    if (!to_loopback && !is_this_machines(peer))
        return FROM_ELSEWHERE;
    return answer == ABSENT ? A_STRANGERS : UNTOLD;
}

/* Whether code at this address is NCCL's (AMD's is called RCCL), which PyTorch may have in it. */
static int is_nccl(const void *code) {
    Dl_info library;
    if (!dladdr(code, &library) || !library.dli_fname)
        return 0;
    const char *slash = strrchr(library.dli_fname, '/');
    const char *name = slash ? slash + 1 : library.dli_fname;
    return strstr(name, "nccl") || strstr(name, "rccl") || strstr(name, "torch_cuda") ||
           strstr(name, "torch_hip");
}

/* Whether what was sent by one that has gone begins with a number that is NCCL's, and no secret. */
static int begins_as_data(int fd) {
    static const uint64_t known = 0x564ab9f2fc4b9d6cULL; /* NCCL_SOCKET_MAGIC in its socket.h */
    uint64_t begin;
    return recv(fd, &begin, sizeof begin, MSG_PEEK | MSG_DONTWAIT) != (ssize_t)sizeof begin ||
           begin == known;
}

static int is_listed(struct in_addr peer, const char *list) {
    while (list && *list) {
        char text[INET_ADDRSTRLEN];
        struct in_addr each;
        size_t length = strcspn(list, ",");
        if (length < sizeof text) {
            memcpy(text, list, length);
            text[length] = 0;
            if (inet_pton(AF_INET, text, &each) == 1 && each.s_addr == peer.s_addr)
                return 1;
        }
        list += length;
        list += *list == ',';
    }
    return 0;
}

/* Whether an accepted connection is to be hung up on. */
static int is_unwanted(int fd, const void *caller) {
    address_t peer, here;
    socklen_t size = sizeof peer;
    struct in_addr own, from;
    const char *peers = getenv("RANKROOM_PEERS");
    if (!own_address(&own) || getpeername(fd, &peer.any, &size) != 0 ||
        (peer.any.sa_family != AF_INET && peer.any.sa_family != AF_INET6))
        return 0;
    size = sizeof here;
    if (getsockname(fd, &here.any, &size) != 0)
        return 0;
    switch (owner_of(&peer, &here)) {
    case OURS:
        return 0;
    case GONE:
        return !is_nccl(caller) || begins_as_data(fd);
    case FROM_ELSEWHERE:
        return peers && !(as_v4(&peer, &from) && is_listed(from, peers));
    case UNTOLD: /* to hang up on all would keep the user's own ranks from meeting; a note says so */
        return 0;
    default:
        return 1;
    }
}

static int take(int fd, struct sockaddr *address, socklen_t *size, int flags, const void *caller) {
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    socklen_t room = size ? *size : 0;
    if (!real)
        real = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    for (;;) {
        struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
        int found = real(fd, address, size, flags);
        if (found < 0 || !is_unwanted(found, caller))
            return found;
        /* Who waits for the next one by accept() goes on waiting. Who was told by poll() that there
         * is one must not: it gets this one, already cut off, and what was sent is dropped. */
        if (!(fcntl(fd, F_GETFL) & O_NONBLOCK) && connect(found, &nowhere, sizeof nowhere) == 0)
            return found;
        close(found);
        if (size)
            *size = room;
    }
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    return take(fd, address, size, flags, __builtin_return_address(0));
}

int accept(int fd, struct sockaddr *address, socklen_t *size) {
    return take(fd, address, size, 0, __builtin_return_address(0));
}
