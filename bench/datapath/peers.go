package datapath

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// peers are other stores, each driven by a process of its own that measures a
// round when it is told to.
type peers struct {
	running []*peer
	rounds  int
}

type peer struct {
	name    string
	cmd     *exec.Cmd
	orders  io.WriteCloser
	answers *bufio.Scanner
}

// startPeers starts the peers for a size.
func startPeers(ctx context.Context, o *Options, g geometry) (_ *peers, err error) {
	p := &peers{rounds: o.Rounds}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	for _, name := range o.Peers {
		cmd := exec.CommandContext(ctx, o.Python, filepath.Join(o.Root, "bench", "datapath", "peers.py"), name,
			strconv.Itoa(g.blocks()), strconv.Itoa(g.Layers), strconv.Itoa(g.shardBytes()/g.Layers), strconv.Itoa(g.BlockTokens), strconv.Itoa(o.Warm))
		cmd.Stderr = os.Stderr
		one := &peer{name: name, cmd: cmd}
		if one.orders, err = cmd.StdinPipe(); err != nil {
			return p, err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return p, err
		}
		if err := cmd.Start(); err != nil {
			return p, fmt.Errorf("peer %s: %w", name, err)
		}
		one.answers = bufio.NewScanner(out)
		p.running = append(p.running, one)
		if _, err := one.answer(); err != nil {
			return p, fmt.Errorf("peer %s does not start: %w", name, err)
		}
	}
	return p, nil
}

// round has every peer measure a round.
func (p *peers) round(_ context.Context, round int) (samples []Sample, err error) {
	for _, one := range p.running {
		if _, err := fmt.Fprintln(one.orders, round); err != nil {
			return nil, fmt.Errorf("peer %s: %w", one.name, err)
		}
		answer, err := one.answer()
		if err != nil {
			return nil, fmt.Errorf("peer %s: %w", one.name, err)
		}
		for kind, walls := range answer {
			for _, wall := range walls {
				samples = append(samples, Sample{Build: one.name, Kind: kind, Round: round, Wall: wall})
			}
		}
	}
	return samples, nil
}

// answer reads times in microseconds by kind.
func (p *peer) answer() (times map[string][]float64, err error) {
	if !p.answers.Scan() {
		return nil, errors.Join(io.ErrUnexpectedEOF, p.answers.Err())
	}
	if err := json.Unmarshal(p.answers.Bytes(), &times); err != nil {
		return nil, fmt.Errorf("%q: %w", p.answers.Text(), err)
	}
	return times, nil
}

func (p *peers) stop() error {
	var errs []error
	for _, one := range p.running {
		_ = one.orders.Close() // which ends it
		if err := one.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("peer %s: %w", one.name, err))
		}
	}
	return errors.Join(errs...)
}

// peerRows are the peers as rows of a table.
func peerRows(o *Options) (rows []Build) {
	for _, name := range o.Peers {
		rows = append(rows, Build{Name: name})
	}
	return rows
}
