package process

import (
	"context"
	"time"

	"cella.dev/cella/guest/agent/e2b"
	"cella.dev/cella/guest/agent/rpc"
)

// stream sends a process's events to one subscriber: start, then data, then end. It returns early when
// the client leaves, its deadline passes, or it is too slow; the process goes on.
func (p *proc) stream(ctx context.Context, call *rpc.Call, sub *subscriber, out *rpc.Sender[e2b.EventResponse]) error {
	defer p.out.leave(sub)
	if call.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, call.Timeout)
		defer cancel()
	}
	interval := call.KeepAlive()
	ping := time.NewTimer(interval)
	defer ping.Stop()

	ev := &e2b.EventResponse{Event: &e2b.ProcessEvent{Start: &e2b.StartEvent{PID: rpc.Uint32(p.pid())}}}
	for {
		if err := out.Send(ev); err != nil {
			return err
		}
		if len(sub.events) == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
		ping.Reset(interval)
		var ok bool
		select {
		case ev, ok = <-sub.events:
			if !ok {
				return p.sendEnd(sub, out)
			}
		case <-ping.C:
			ev = &e2b.EventResponse{Event: &e2b.ProcessEvent{KeepAlive: &e2b.KeepAlive{}}}
		case <-sub.cut:
			return rpc.Errorf(rpc.ResourceExhausted, "output was not read for %s; connect again to follow the process", stallLimit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendEnd tells how the process ended. To the caller whose deadline killed it, the deadline is the news.
func (p *proc) sendEnd(sub *subscriber, out *rpc.Sender[e2b.EventResponse]) error {
	if sub.owner && p.timedOut.Load() {
		return context.DeadlineExceeded
	}
	return out.Send(&e2b.EventResponse{Event: &e2b.ProcessEvent{End: p.end}})
}
