/* The ports that libraries open in a rank, closed to those that are not its own user.
 *
 * Loaded into a rank and what it starts by LD_PRELOAD. TensorFlow's server and the store of
 * torch.distributed listen on all addresses and check no one who connects. With RANKROOM_BIND set,
 * what would listen on all addresses listens on that one; a connection from this machine is
 * accepted only if the process at its other end is of the same user (or root's), and with
 * RANKROOM_PEERS set, one from another machine only if that is among them. Others are hung up on.
 *
 * NCCL's ranks connect, say where they are, and close, often before they are accepted. Nobody owns the
 * other end by then, so whose it was cannot be told. NCCL is given such connections all the same: where
 * its ranks meet, it takes nothing from one that does not begin with the secret number of their
 * communicator. Its data begins with a number that everybody knows; those who send data are there still.
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
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

typedef union {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage room;
} address_t;

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

/* An IPv4 address, also one that is written as an IPv6 one; 0 if it is neither. */
static int as_v4(const address_t *address, struct in_addr *found) {
    if (address->any.sa_family == AF_INET) {
        *found = address->v4.sin_addr;
        return 1;
    }
    if (address->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr)) {
        memcpy(found, &address->v6.sin6_addr.s6_addr[12], 4);
        return 1;
    }
    return 0;
}

/* Put one address in the place of all of them; 1 if it was all of them. */
static int narrow(int fd, address_t *address, struct in_addr own) {
    if (address->any.sa_family == AF_INET && address->v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
        address->v4.sin_addr = own;
        return 1;
    }
    if (address->any.sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&address->v6.sin6_addr)) {
        int only = 0;
        socklen_t size = sizeof only;
        getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &size);
        if (only) {
            address->v6.sin6_addr = in6addr_loopback;
        } else {
            memset(&address->v6.sin6_addr, 0, 10);
            memset(&address->v6.sin6_addr.s6_addr[10], 0xff, 2);
            memcpy(&address->v6.sin6_addr.s6_addr[12], &own, 4);
        }
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

enum owner { OURS, A_STRANGERS, NOBODYS };

/* Ask the kernel whose the other end of a connection on this machine is: this user's or root's, a
 * stranger's, or nobody's any more, as it was closed there. */
static enum owner owner_of(const address_t *peer, const address_t *here) {
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 asked;
    } question;
    union {
        struct nlmsghdr head;
        char room[4096];
    } answer;
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct timeval patience = {.tv_sec = 1};
    ssize_t got;
    int diag = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (diag < 0)
        return A_STRANGERS;
    setsockopt(diag, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    memset(&question, 0, sizeof question);
    question.head.nlmsg_len = sizeof question;
    question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    question.head.nlmsg_flags = NLM_F_REQUEST;
    question.asked.sdiag_protocol = IPPROTO_TCP;
    question.asked.idiag_states = ~0u;
    question.asked.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
    question.asked.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    /* From the other end's point of view; a socket that was made for IPv6 may speak IPv4. */
    struct in_addr from, to;
    int v4 = as_v4(peer, &from) && as_v4(here, &to);
    if (v4) {
        question.asked.sdiag_family = AF_INET;
        question.asked.id.idiag_src[0] = from.s_addr;
        question.asked.id.idiag_dst[0] = to.s_addr;
    } else {
        question.asked.sdiag_family = AF_INET6;
        memcpy(question.asked.id.idiag_src, &peer->v6.sin6_addr, 16);
        memcpy(question.asked.id.idiag_dst, &here->v6.sin6_addr, 16);
    }
    /* The port stands in the same place in both kinds of addresses. */
    question.asked.id.idiag_sport = peer->v4.sin_port;
    question.asked.id.idiag_dport = here->v4.sin_port;
    got = sendto(diag, &question, sizeof question, 0, (struct sockaddr *)&kernel, sizeof kernel);
    if (got == (ssize_t)sizeof question)
        got = recv(diag, &answer, sizeof answer, 0);
    close(diag);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return A_STRANGERS;
    const struct inet_diag_msg *found = NLMSG_DATA(&answer.head);
    if (found->idiag_inode == 0)
        return NOBODYS;
    return found->idiag_uid == geteuid() || found->idiag_uid == 0 ? OURS : A_STRANGERS;
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

static int is_loopback(struct in_addr address) {
    return (ntohl(address.s_addr) >> 24) == 127;
}

/* Whether an accepted connection is to be hung up on. What comes to loopback comes from this machine,
 * whatever address it says it comes from: a program may choose any of the machine's own. */
static int is_unwanted(int fd, const void *caller) {
    address_t peer, here;
    int is_local = 0;
    socklen_t size = sizeof peer;
    struct in_addr own, from, to;
    const char *peers = getenv("RANKROOM_PEERS");
    if (!own_address(&own) || getpeername(fd, &peer.any, &size) != 0)
        return 0;
    size = sizeof here;
    if (getsockname(fd, &here.any, &size) != 0)
        return 0;
    if (as_v4(&peer, &from) && as_v4(&here, &to)) {
        is_local = from.s_addr == to.s_addr || is_loopback(from) || is_loopback(to);
        if (!is_local)
            return peers && !is_listed(from, peers);
    } else if (peer.any.sa_family == AF_INET6) {
        is_local = IN6_ARE_ADDR_EQUAL(&peer.v6.sin6_addr, &here.v6.sin6_addr) ||
                   IN6_IS_ADDR_LOOPBACK(&here.v6.sin6_addr);
        if (!is_local)
            return peers != NULL;
    }
    if (!is_local)
        return 0; /* not of the internet */
    switch (owner_of(&peer, &here)) {
    case OURS:
        return 0;
    case NOBODYS:
        return !is_nccl(caller) || begins_as_data(fd);
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
