/* What Linux tells of the TCP sockets of this machine: whose they are, and where one listens.
 *
 * It is asked (inet_diag), or looked up in the tables in /proc where a kernel has no inet_diag, as in
 * some containers. system/socket_owner.py does the same in Python.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
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

typedef struct {
    uid_t uid;
    int is_closed; /* by its process: the kernel still has it for a while, without an owner */
    int listens;
} tcp_socket_t;

/* FAILED: this once, as where all descriptors are in use. UNKNOWABLE: this machine never tells. */
enum answer { FOUND, ABSENT, FAILED, UNKNOWABLE };

enum { LISTENS = 10 }; /* TCP_LISTEN in the kernel's own list of states */

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

/* Any address as an IPv6 one. */
static struct in6_addr as_v6(const address_t *address) {
    struct in6_addr found = IN6ADDR_ANY_INIT;
    struct in_addr v4;
    if (!as_v4(address, &v4))
        return address->v6.sin6_addr;
    memset(&found.s6_addr[10], 0xff, 2);
    memcpy(&found.s6_addr[12], &v4, 4);
    return found;
}

/* Write an IPv4 address as an IPv6 one in the place of another. */
static void put_v4(struct in6_addr *place, struct in_addr v4) {
    address_t address = {.v4 = {.sin_family = AF_INET, .sin_addr = v4}};
    *place = as_v6(&address);
}

/* Ask the kernel for the socket at `local` that is connected to `remote`, or listens if that is NULL.
 * ABSENT is also what a kernel without inet_diag answers. */
static enum answer ask_kernel(const address_t *local, const address_t *remote, tcp_socket_t *found) {
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
    struct in_addr from, to = {0};
    ssize_t got;
    int diag = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (diag < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ? FAILED
                                                                                        : ABSENT;
    setsockopt(diag, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    memset(&question, 0, sizeof question);
    question.head.nlmsg_len = sizeof question;
    question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
    question.head.nlmsg_flags = NLM_F_REQUEST;
    question.asked.sdiag_protocol = IPPROTO_TCP;
    question.asked.idiag_states = ~0u;
    question.asked.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
    question.asked.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    /* A socket that was made for IPv6 may speak IPv4. */
    if (as_v4(local, &from) && (!remote || as_v4(remote, &to))) {
        question.asked.sdiag_family = AF_INET;
        question.asked.id.idiag_src[0] = from.s_addr;
        question.asked.id.idiag_dst[0] = to.s_addr;
    } else {
        question.asked.sdiag_family = AF_INET6;
        memcpy(question.asked.id.idiag_src, &local->v6.sin6_addr, 16);
        if (remote)
            memcpy(question.asked.id.idiag_dst, &remote->v6.sin6_addr, 16);
    }
    /* The port stands in the same place in both kinds of addresses. */
    question.asked.id.idiag_sport = local->v4.sin_port;
    question.asked.id.idiag_dport = remote ? remote->v4.sin_port : 0;
    got = sendto(diag, &question, sizeof question, 0, (struct sockaddr *)&kernel, sizeof kernel);
    if (got == (ssize_t)sizeof question)
        got = recv(diag, &answer, sizeof answer, 0);
    close(diag);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg)) ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return ABSENT;
    const struct inet_diag_msg *socket = NLMSG_DATA(&answer.head);
    found->uid = socket->idiag_uid;
    found->is_closed = socket->idiag_inode == 0;
    found->listens = socket->idiag_state == LISTENS;
    /* Where there is no such connection, the kernel tells of what listens at that port. */
    return found->listens == !remote ? FOUND : ABSENT;
}

/* An address and a port as a table in /proc has them: words of the address as this machine has them in
 * memory, the port as a number. */
static int is_at(const char *address, unsigned port, const address_t *wanted) {
    address_t listed;
    memset(&listed, 0, sizeof listed);
    size_t words = strlen(address) / 8;
    uint32_t *place = words == 1 ? &listed.v4.sin_addr.s_addr : listed.v6.sin6_addr.s6_addr32;
    listed.any.sa_family = words == 1 ? AF_INET : AF_INET6;
    for (size_t word = 0; word < words; word++)
        if (sscanf(address + 8 * word, "%8" SCNx32, &place[word]) != 1)
            return 0;
    struct in6_addr here = as_v6(&listed), there = as_v6(wanted);
    return port == ntohs(wanted->v4.sin_port) && IN6_ARE_ADDR_EQUAL(&here, &there);
}

/* The same of what listens, which may do so on all addresses. */
static int is_listening_at(const char *address, unsigned port, const address_t *wanted) {
    struct in_addr v4;
    int is_everywhere = strspn(address, "0") == strlen(address);
    /* What is for IPv6 on all addresses mostly is for IPv4 as well, but not the other way round. */
    if (is_everywhere && (strlen(address) > 8 || as_v4(wanted, &v4)))
        return port == ntohs(wanted->v4.sin_port);
    return is_at(address, port, wanted);
}

/* The same as `ask_kernel`, from the tables. */
static enum answer look_up(const address_t *local, const address_t *remote, tcp_socket_t *found) {
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    enum answer answer = UNKNOWABLE;
    for (int i = 0; i < 2 && answer != FOUND; i++) {
        char line[512], here[33], there[33];
        unsigned here_port, there_port, state, uid;
        unsigned long inode;
        FILE *table = fopen(tables[i], "re");
        if (!table && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
            return FAILED;
        if (!table)
            continue;
        while (answer != FOUND && fgets(line, sizeof line, table)) {
            answer = ABSENT; /* a table that can be read has at least its heading */
            if (sscanf(line,
                       " %*d: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %*x:%*x %*x:%*x %*x %u %*d %lu", here,
                       &here_port, there, &there_port, &state, &uid, &inode) != 7)
                continue;
            if ((state == LISTENS) != !remote)
                continue;
            if (remote ? is_at(here, here_port, local) && is_at(there, there_port, remote)
                       : is_listening_at(here, here_port, local)) {
                found->uid = uid;
                found->is_closed = inode == 0;
                found->listens = state == LISTENS;
                answer = FOUND;
            }
        }
        fclose(table);
    }
    return answer;
}

/* Whether the kernel answers: whether it knows of a socket that is there. -1: not to be told now. */
static int kernel_answers(void) {
    static int known = -1;
    tcp_socket_t found;
    address_t address = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address.v4;
    if (known >= 0)
        return known;
    int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe < 0)
        return -1;
    if (bind(probe, &address.any, size) == 0 && listen(probe, 1) == 0 &&
        getsockname(probe, &address.any, &size) == 0) {
        enum answer answer = ask_kernel(&address, NULL, &found);
        if (answer != FAILED)
            known = answer == FOUND;
    } else {
        known = 0; /* without loopback */
    }
    close(probe);
    return known;
}

/* The socket at `local` that is connected to `remote`, or listens if that is NULL. */
static enum answer find_socket(const address_t *local, const address_t *remote, tcp_socket_t *found) {
    switch (kernel_answers()) {
    case 1:
        return ask_kernel(local, remote, found);
    case 0:
        return look_up(local, remote, found);
    default:
        return FAILED;
    }
}
