package netbench

import (
	"fmt"
	"io"
	"net"
	"time"

	"cella.dev/cella/netvs/testnet"
)

// Ports of the world's servers.
const (
	sinkPort = ":7001" // counts what comes, and says so when the stream ends
	echoPort = ":7002" // answers datagrams
)

// serveWorld starts the world's servers, which end with their sockets.
func serveWorld(w *testnet.Namespace) (closers []io.Closer, err error) {
	l, err := w.Listen(testnet.World + sinkPort)
	if err != nil {
		return nil, err
	}
	c, err := w.ListenPacket("udp4", testnet.World+echoPort)
	if err != nil {
		l.Close()
		return nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go sink(conn)
		}
	}()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(buf[:n], from)
		}
	}()
	return []io.Closer{l, c}, nil
}

func sink(conn net.Conn) {
	defer conn.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{conn}, make([]byte, 1<<20))
	if err == nil {
		fmt.Fprint(conn, n)
	}
}

// upload sends one stream for a while, and returns how many bytes a second arrived.
func upload(g *testnet.Guest, d time.Duration) (bytesPerSecond float64, err error) {
	conn, err := g.Dial("tcp4", testnet.World+sinkPort)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	c := conn.(*net.TCPConn)
	if err := c.SetDeadline(time.Now().Add(d + testnet.Limit)); err != nil {
		return 0, err
	}
	buf := make([]byte, 1<<20)
	start := time.Now()
	for time.Since(start) < d {
		if _, err := c.Write(buf); err != nil {
			return 0, fmt.Errorf("upload: %w", err)
		}
	}
	if err := c.CloseWrite(); err != nil {
		return 0, err
	}
	var arrived float64
	if _, err := fmt.Fscan(c, &arrived); err != nil {
		return 0, fmt.Errorf("how much arrived: %w", err)
	}
	return arrived / time.Since(start).Seconds(), nil
}

// connect opens and closes n connections, one after the other. It reports how long each took until it was open.
func connect(g *testnet.Guest, n int, took func(time.Duration, error)) error {
	return g.Do(func() error { // all of it in the guest's namespace, where sockets are made
		for range n {
			start := time.Now()
			c, err := net.DialTimeout("tcp4", testnet.World+sinkPort, testnet.Limit)
			took(time.Since(start), err)
			if err == nil {
				c.Close()
			}
		}
		return nil
	})
}

// pingPong sends n small datagrams, each after the answer to the one before. It reports the round trips.
func pingPong(g *testnet.Guest, n int, took func(time.Duration, error)) error {
	c, err := g.Dial("udp4", testnet.World+echoPort)
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, 64)
	for range n {
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		start := time.Now()
		_, err := c.Write(buf)
		if err == nil {
			_, err = c.Read(buf)
		}
		took(time.Since(start), err)
	}
	return nil
}
