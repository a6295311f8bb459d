package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// ctlTimeout bounds a command unless --timeout says otherwise.
const ctlTimeout = 30 * time.Second

const ctlHelp = `Asks the running daemon about its store, and changes what is in it. A namespace
is given by its number, the beginning of its digest, or its model, and may be left
out where there is one only. Hashes come from a file or standard input (-), one in
hexadecimal a line; what follows # is a comment. The JSON that explain reads will do too.

What destroys something wants --yes, and without it says what would go.

Exit code 0: done; 1: refused, or nothing of it found; 2: bad flags or input;
3: no daemon answers in this runtime directory.

Examples:

   mooncake-lookupd ctl namespaces
   mooncake-lookupd ctl pin --hashes system-prompt.txt --hard --ttl 24h
   mooncake-lookupd --runtime-dir /run/mooncake-sidecar ctl stats --json`

// ctlRun is what a subcommand of ctl does: it asks and prints.
type ctlRun func(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error

// ctlCommand operates the running daemon.
func ctlCommand(runtimeDir func() string) command.Subcommand {
	ctl := command.Subcommand{Name: "ctl", Usage: "operate the running daemon: see, pin, evict, remove, bound what it stores", Description: ctlHelp}
	add := func(name, usage, help string, run ctlRun, flags ...cli.Flag) {
		flags = append(flags,
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.DurationFlag{Name: "timeout", Usage: "`time` to wait for the daemon", Value: ctlTimeout},
		)
		ctl.Commands = append(ctl.Commands, command.Subcommand{
			Name: name, Usage: usage, Description: help, Flags: flags,
			Run: func(c *cli.Context, out io.Writer) error { return runCtl(runtimeDir(), run, c, out) },
		})
	}
	addQuestions(add)
	addChanges(add)
	addBounds(add)
	return ctl
}

// addCtl adds a subcommand; help ends with examples.
type addCtl func(name, usage, help string, run ctlRun, flags ...cli.Flag)

// runCtl connects, runs and gives a failure its exit code.
func runCtl(dir string, run ctlRun, c *cli.Context, out io.Writer) error {
	if c.Duration("timeout") <= 0 {
		return command.UsageErrorf("--timeout %s; want more than 0", c.Duration("timeout"))
	}
	ctx, cancel := context.WithTimeout(c.Context, c.Duration("timeout"))
	defer cancel()
	op, err := daemon.NewOperator(dir)
	if err != nil {
		return err
	}
	err = errors.Join(run(ctx, op, c, out), op.Close())
	if errors.Is(err, daemon.ErrNotRunning) || errors.Is(err, context.DeadlineExceeded) {
		return command.WithCode(command.ExitUnreachable, err)
	}
	return err
}

// errNothing ends a command that found nothing to do; it has printed its zeros.
var errNothing = errors.New("nothing was found")

func namespaceFlag() cli.Flag {
	return &cli.StringFlag{Name: "namespace", Usage: "the `namespace` that is meant: number, digest or model"}
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "do it; without it the command says what it would do"}
}

// namespaceList asks for the namespaces.
func namespaceList(ctx context.Context, op *daemon.Operator) ([]daemon.Namespace, *adminpb.ListNamespacesReply, error) {
	reply, err := op.ListNamespaces(ctx, &adminpb.ListNamespacesRequest{})
	if err != nil {
		return nil, nil, err
	}
	all := make([]daemon.Namespace, len(reply.GetNamespaces()))
	for i, entry := range reply.GetNamespaces() {
		all[i].ID = entry.GetId()
		if err := json.Unmarshal(entry.GetSpec(), &all[i].Spec); err != nil {
			return nil, nil, fmt.Errorf("namespace %d: %w", entry.GetId(), err)
		}
	}
	return all, reply, nil
}

// target is the namespace that a command means.
type target struct {
	spec   kv.NamespaceSpec
	digest []byte
	name   string // in messages
	entry  *adminpb.ListNamespacesReply_Entry
}

// chosen asks for the namespaces and finds the one that --namespace names.
func chosen(ctx context.Context, op *daemon.Operator, c *cli.Context) (*target, error) {
	all, reply, err := namespaceList(ctx, op)
	if err != nil {
		return nil, err
	}
	ns, err := chooseNamespace(all, c.String("namespace"))
	if err != nil {
		return nil, err
	}
	for _, entry := range reply.GetNamespaces() {
		if entry.GetId() == ns.ID {
			return &target{ns.Spec, entry.GetDigest(), fmt.Sprintf("namespace %d (%s)", ns.ID, ns.Spec.Model), entry}, nil
		}
	}
	return nil, fmt.Errorf("BUG: namespace %d is not among its own", ns.ID)
}

// shortNames names the namespaces in tables, by digest.
func shortNames(ctx context.Context, op *daemon.Operator) (map[string]string, error) {
	all, reply, err := namespaceList(ctx, op)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for i, entry := range reply.GetNamespaces() {
		names[string(entry.GetDigest())] = fmt.Sprintf("%d %s", all[i].ID, kv.ModelBaseName(all[i].Spec.Model))
	}
	return names, nil
}
