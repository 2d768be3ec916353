package chipset

import (
	"io"
)

// Registers of a 16550A, by offset; what is at 0 to 2 depends on direction and on the DLAB bit.
const (
	regData  = 0 // receive (read) or transmit (write), or divisor low
	regIER   = 1 // interrupt enable, or divisor high
	regIIR   = 2 // interrupt identification (read), FIFO control (write)
	regLCR   = 3
	regMCR   = 4
	regLSR   = 5
	regMSR   = 6
	regScr   = 7
	lcrDLAB  = 0x80
	ierTHRE  = 0x02
	iirNone  = 0x01
	iirTHRE  = 0x02
	iirFIFO  = 0xc0
	fcrFIFO  = 0x01
	lsrIdle  = 0x60 // transmitter empty, shift register empty
	msrReady = 0xb0 // carrier, data set ready, clear to send
	mcrLoop  = 0x10
)

// lineBufferBytes is how much of a line is kept before it is written out.
const lineBufferBytes = 512

// Serial is the transmitting half of a 16550A. What the guest writes goes to an io.Writer by lines: a write
// a byte would cost a system call each. The caller serialises all methods.
type Serial struct {
	out io.Writer
	irq func()
	buf []byte
	SerialState
}

// NewSerial makes a serial port that writes to out and calls irq for each interrupt.
func NewSerial(out io.Writer, irq func()) *Serial {
	return &Serial{out: out, irq: irq, buf: make([]byte, 0, lineBufferBytes)}
}

// Read reads the register at an offset from SerialPort.
func (s *Serial) Read(offset uint16) byte {
	dlab := s.LCR&lcrDLAB != 0
	switch offset {
	case regData:
		if dlab {
			return s.DivisorLow
		}
		return 0
	case regIER:
		if dlab {
			return s.DivisorHigh
		}
		return s.IER
	case regIIR:
		return s.readIIR()
	case regLCR:
		return s.LCR
	case regMCR:
		return s.MCR
	case regLSR:
		return lsrIdle
	case regMSR:
		return s.modemStatus()
	case regScr:
		return s.Scratch
	}
	return 0xff
}

// readIIR tells and thereby acknowledges the pending interrupt.
func (s *Serial) readIIR() byte {
	v := byte(iirNone)
	if s.TransmitPending && s.IER&ierTHRE != 0 {
		v, s.TransmitPending = iirTHRE, false
	}
	if s.FIFO {
		v |= iirFIFO
	}
	return v
}

// modemStatus is a line that is always ready, or the modem control bits in loopback, by which drivers
// recognise the chip.
func (s *Serial) modemStatus() byte {
	if s.MCR&mcrLoop == 0 {
		return msrReady
	}
	dtr, rts := s.MCR&1, s.MCR>>1&1
	out1, out2 := s.MCR>>2&1, s.MCR>>3&1
	return rts<<4 | dtr<<5 | out1<<6 | out2<<7
}

// Write writes the register at an offset from SerialPort.
func (s *Serial) Write(offset uint16, v byte) {
	dlab := s.LCR&lcrDLAB != 0
	switch offset {
	case regData:
		if dlab {
			s.DivisorLow = v
			return
		}
		s.transmit(v)
	case regIER:
		if dlab {
			s.DivisorHigh = v
			return
		}
		s.enable(v & 0x0f)
	case regIIR:
		s.FIFO = v&fcrFIFO != 0
	case regLCR:
		s.LCR = v
	case regMCR:
		s.MCR = v & 0x1f
	case regScr:
		s.Scratch = v
	}
}

// transmit sends one byte. It has left the transmitter when this returns, so the transmitter is empty again.
func (s *Serial) transmit(v byte) {
	if s.MCR&mcrLoop == 0 {
		s.buf = append(s.buf, v)
		if v == '\n' || len(s.buf) == lineBufferBytes {
			s.Flush()
		}
	}
	s.raise()
}

// enable sets the interrupt enable register. Enabling the transmitter's interrupt while it is empty raises
// it: Linux tests for that and falls back to polling otherwise.
func (s *Serial) enable(v byte) {
	was := s.IER
	s.IER = v
	if was&ierTHRE == 0 && v&ierTHRE != 0 {
		s.raise()
	}
}

func (s *Serial) raise() {
	s.TransmitPending = true
	if s.IER&ierTHRE != 0 && s.irq != nil {
		s.irq()
	}
}

// Flush writes out an unfinished line. Errors of the writer are dropped: a guest must not stop because
// nobody reads its console.
func (s *Serial) Flush() {
	if len(s.buf) > 0 {
		_, _ = s.out.Write(s.buf)
		s.buf = s.buf[:0]
	}
}
